//! `zazen plugin`: what writers of plug-ins need (stubs from a header, the C files that they stand on, a template), and
//! what those who run them do (who is there, does it answer, what has it done).

mod ask;
mod runtime;
mod template;

use crate::output;
use crate::target::Done;
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};
use zazen_core::{Error, ErrorKind, Result};

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen plugin new adder && make -C adder test           # a plug-in that works, to be changed
  zazen plugin sdk sdk                                   # zazen_plugin.h, zazen_stub.h, the runtimes
  zazen plugin generate adder.h --out generated          # client stubs, dispatcher, schema, tests
  zazen plugin list                                      # what this machine's daemon serves
  zazen plugin stats adder                               # calls, errors, bytes, times

docs/plugins.md is the tutorial and the reference of the header's annotations.")]
pub(crate) struct Plugin {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Turn an annotated C header into client stubs (C, Rust, Python), a dispatcher, a schema and tests
    Generate {
        /// The header, with its START-ZAZEN-SCANNER marker
        #[arg(value_name = "HEADER.h")]
        header: PathBuf,
        /// Where to put the files; made if it is not there. Files of the same names are replaced
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// Print what was generated as JSON
        #[arg(long)]
        json: bool,
    },
    /// Write the headers and the runtimes that generated code stands on
    Sdk {
        /// Where to; made if it is not there
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Make a plug-in that builds, passes its test and runs: header, functions, client, Makefile, test
    New {
        /// Its name: letters, digits and _, as in C
        #[arg(value_name = "NAME")]
        name: String,
        /// Where to put it [default: NAME]; must not exist, or be empty
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// Show which plug-ins a daemon serves
    List(ask::List),
    /// See whether plug-ins answer; fails if one does not
    Ping(ask::Ping),
    /// Show what a plug-in's functions have done
    Stats(ask::Stats),
}

macro_rules! sdk {
    ($($folder:literal / $name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../../../sdk/plugin/", $folder, "/", $name)))),*]
    };
}

/// What generated code is compiled with.
const SDK: [(&str, &str); 8] = sdk![
    "include" / "zazen_segment.h",
    "include" / "zazen_stub.h",
    "include" / "zazen_connect.h",
    "include" / "zazen_plugin.h",
    "include" / "zazen_selftest.h",
    "include" / "zazen_fuzz.h",
    "loopback" / "zazen_loopback.h",
    "loopback" / "zazen_loopback.c",
];

pub(crate) fn run(arguments: &Plugin) -> Result<Done> {
    let wholly = |()| Done::Wholly;
    match &arguments.action {
        Action::Generate { header, out, json } => generate(header, out, *json).map(wholly),
        Action::Sdk { folder } => {
            write_sdk(folder)?;
            output::line(format!("headers and runtimes written to {}", folder.display()));
            Ok(Done::Wholly)
        }
        Action::New { name, dir } => template::make(name, dir.as_deref()).map(wholly),
        Action::List(arguments) => arguments.run(),
        Action::Ping(arguments) => arguments.run(),
        Action::Stats(arguments) => arguments.run(),
    }
}

fn write_sdk(folder: &Path) -> Result<()> {
    write_all(folder, SDK.iter().copied())?;
    runtime::copy_to(folder)
}

fn generate(header: &Path, out: &Path, json: bool) -> Result<()> {
    let text = crate::parse::text_file(header, zazen_stubs::HEADER_BYTES_MAX as u64, "header")?;
    let name = header.file_name().and_then(|name| name.to_str()).ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidArgument,
            format!("header {}: has no name that C can include; rename it", header.display()),
        )
    })?;
    let generated = match zazen_stubs::generate(name, &text) {
        Ok(generated) => generated,
        Err(errors) => {
            for error in &errors {
                output::diagnostic(error.to_string());
            }
            let (count, plural) = (errors.len(), if errors.len() == 1 { "" } else { "s" });
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{}: {count} mistake{plural}, nothing generated; each says above what to do",
                    header.display()
                ),
            ));
        }
    };
    for warning in &generated.warnings {
        output::diagnostic(warning.to_string());
    }
    write_all(out, generated.files.iter().map(|file| (file.name.as_str(), file.text.as_str())))?;
    if json {
        let files: Vec<&str> = generated.files.iter().map(|file| file.name.as_str()).collect();
        output::json(&serde_json::json!({
            "name": generated.name,
            "id": generated.id,
            "functions": generated.functions,
            "schema_hash": format!("{:016x}", generated.schema_hash),
            "out": out,
            "files": files,
        }));
    } else {
        output::line(format!(
            "{}: plug-in {}, {} functions, schema {:016x}; {} files in {}",
            generated.name,
            generated.id,
            generated.functions,
            generated.schema_hash,
            generated.files.len(),
            out.display()
        ));
    }
    Ok(())
}

fn write_all<'a>(folder: &Path, files: impl Iterator<Item = (&'a str, &'a str)>) -> Result<()> {
    std::fs::create_dir_all(folder)
        .map_err(|error| Error::io(format!("folder {}", folder.display()), error))?;
    for (name, text) in files {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|error| Error::io(format!("file {}", path.display()), error))?;
    }
    Ok(())
}
