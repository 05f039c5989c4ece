//! `zazen testbed serve-files`: the testbed's stand-in for a slow shared file server.

use crate::parse;
use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::net::TcpListener;
use std::path::PathBuf;
use zazen_core::{Error, Result};

#[derive(Args)]
pub(crate) struct ServeFiles {
    /// The directory to serve
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    /// Where to listen
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: String,
    /// Bytes per second for all readers together
    #[arg(long, value_name = "RATE", value_parser = parse::byte_rate)]
    rate: Option<u64>,
    /// Write the address to this file once it listens
    #[arg(long, value_name = "FILE")]
    ready: Option<PathBuf>,
}

impl ServeFiles {
    pub(crate) fn run(&self) -> Result<()> {
        let mut signals =
            Signals::new([SIGINT, SIGTERM]).map_err(|error| Error::io("handlers for signals", error))?;
        let listener = TcpListener::bind(&self.listen)
            .map_err(|error| Error::io(format!("file server's address {}", self.listen), error))?;
        let mut server = zazen_backing::served::serve(listener, &self.root, self.rate)?;
        let addr = server.addr().to_string();
        if let Some(ready) = &self.ready {
            std::fs::write(ready, format!("{addr}\n"))
                .map_err(|error| Error::io(format!("file {}", ready.display()), error))?;
        }
        crate::output::note(format!("serving {} on {addr}", self.root.display()));
        signals.forever().next();
        server.stop();
        Ok(())
    }
}
