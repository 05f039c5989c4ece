//! `zazen testbed env`: the variables that let every tool and analysis find the testbed.

use crate::output;
use clap::Args;
use serde_json::{Map, Value};
use std::path::Path;
use zazen_core::Result;
use zazen_testbed::{State, place};

#[derive(Args)]
pub(crate) struct Env {
    /// Also the variables of this host's own: n0, n1, …, fs, sim
    #[arg(long, value_name = "HOST")]
    on: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Env {
    pub(crate) fn run(&self, dir: &Path) -> Result<()> {
        let state = State::load(dir)?;
        let host = self.on.as_deref().map(|name| state.host(name)).transpose()?;
        let variables = place::environment(&state, host);
        if self.json {
            let object: Map<String, Value> =
                variables.into_iter().map(|(name, value)| (name.to_owned(), Value::from(value))).collect();
            output::json(&Value::Object(object));
        } else {
            for (name, value) in variables {
                output::line(format!("export {name}={}", quoted(&value)));
            }
        }
        Ok(())
    }
}

/// `text` as one word of a POSIX shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_quote_in_a_path_stays_in_the_word() {
        assert_eq!(super::quoted("a b"), "'a b'");
        assert_eq!(super::quoted("it's"), r"'it'\''s'");
    }
}
