//! `zazen plugin generate`: an annotated C header becomes stubs, a dispatcher, a schema and tests.

use super::sdk;
use crate::output;
use clap::Args;
use std::path::PathBuf;
use zazen_core::{Error, ErrorKind, Result};

#[derive(Args)]
pub(super) struct Generate {
    /// The header, with its START-ZAZEN-SCANNER marker
    #[arg(value_name = "HEADER.h")]
    header: PathBuf,
    /// Where to put the files; made if it is not there. Files of the same names are replaced
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Print what was generated as JSON
    #[arg(long)]
    json: bool,
}

impl Generate {
    pub(super) fn run(&self) -> Result<()> {
        let Generate { header, out, json } = self;
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
        sdk::write_all(out, generated.files.iter().map(|file| (file.name.as_str(), file.text.as_str())))?;
        if *json {
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
}
