//! SIGTERM and SIGINT stop the daemon in order, a second one at once; SIGUSR1 asks for the state;
//! SIGHUP reads the settings again.

use crate::node::Node;
use crate::reload::Reloader;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use std::sync::{Arc, mpsc};
use zazen_core::{Error, Result};

/// Signals caught from now on, on a thread of their own.
pub struct StopSignals {
    stop: mpsc::Receiver<i32>,
}

impl StopSignals {
    /// Catches signals. Call it before anything that a signal should not interrupt.
    pub fn catch(node_later: mpsc::Receiver<Arc<Node>>, reloader: Reloader) -> Result<StopSignals> {
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR1, SIGHUP])
            .map_err(|error| Error::io("catch signals", error))?;
        let (tell, stop) = mpsc::channel();
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                let mut node: Option<Arc<Node>> = None;
                let mut stopping = false;
                for signal in signals.forever() {
                    node = node.or_else(|| node_later.try_recv().ok());
                    match signal {
                        SIGHUP => match &node {
                            Some(node) => reloader.reload(node),
                            None => tracing::warn!("SIGHUP: ignored while the daemon starts; send it again"),
                        },
                        SIGUSR1 => node.iter().for_each(|node| write_dump(node)),
                        signal if stopping => std::process::exit(128 + signal),
                        signal => {
                            stopping = true;
                            tell.send(signal).ok();
                        }
                    }
                }
            })
            .map_err(|error| Error::io("start the signal thread", error))?;
        Ok(StopSignals { stop })
    }

    /// Waits for the first SIGTERM or SIGINT; its name.
    pub fn wait(&self) -> &'static str {
        match self.stop.recv() {
            Ok(SIGINT) => "SIGINT",
            _ => "SIGTERM",
        }
    }
}

fn write_dump(node: &Node) {
    let text = crate::status::dump(node);
    match &node.config().dump_file {
        None => tracing::info!("state as asked for by SIGUSR1:\n{text}"),
        // It names everybody's files.
        Some(path) => match crate::told_files::put(path, text.as_bytes(), 0o600) {
            Ok(()) => tracing::info!("state written to {}", path.display()),
            Err(error) => {
                tracing::warn!("state not written to {}: {error}; check --dump-file", path.display())
            }
        },
    }
}
