//! zazend: reads its settings, starts the daemon, waits for a signal.

use clap::Parser;
use std::io::Write;
use std::process::ExitCode;
use std::sync::mpsc;
use zazen_core::{Error, Result};
use zazend::config::{Args, Config, check_budget};
use zazend::cores::{CpuShare, Cpus};
use zazend::logging::{DEFAULT_LOG, LogLevel};
use zazend::reload::Reloader;
use zazend::signals::StopSignals;
use zazend::{Daemon, check, memory, told_files};

fn main() -> ExitCode {
    memory::bound_arenas();
    if std::env::args_os().nth(1).is_some_and(|flag| flag == zazen_plugins::WORKER_FLAG) {
        let told = std::env::var("ZAZEN_LOG").unwrap_or_default();
        LogLevel::start(if told.is_empty() { DEFAULT_LOG } else { &told });
        return zazen_plugins::worker_main(zazend::record_plugin);
    }
    let args = Args::parse();
    if args.check {
        let report = check::check(&args);
        // The report is the command's output.
        std::io::stdout().write_all(report.text.as_bytes()).ok();
        return if report.good { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let log = LogLevel::start(args.log.as_deref().unwrap_or(DEFAULT_LOG));
    match run(args, log) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args, log: LogLevel) -> Result<()> {
    let config = Config::assemble(&args)?;
    log.set(&config.log)?;
    check_budget(&config)?;
    // Before there are threads: they inherit it.
    config.cpus.as_ref().map_or(Ok(()), Cpus::keep_to)?;
    config.cpu_share.map_or(Ok(()), CpuShare::take)?;
    let (tell_node, node_later) = mpsc::channel();
    let signals = StopSignals::catch(node_later, Reloader::new(args, log))?;
    let (ready_fd, ready_file) = (config.ready_fd, config.ready_file.clone());
    let daemon = Daemon::start(config)?;
    tell_node.send(daemon.node().clone()).ok();
    tracing::info!("{}", daemon.describe());
    let ready = daemon.ready_json() + "\n";
    if let Some(fd) = ready_fd {
        let told = std::fs::OpenOptions::new().write(true).open(format!("/dev/fd/{fd}"));
        let told = told.and_then(|mut file| file.write_all(ready.as_bytes()));
        told.map_err(|error| Error::io(format!("tell readiness to --ready-fd {fd}"), error))?;
    }
    if let Some(path) = ready_file {
        let told = told_files::put(&path, ready.as_bytes(), 0o644);
        told.map_err(|error| Error::io(format!("write --ready-file {}", path.display()), error))?;
    }
    let signal = signals.wait();
    tracing::info!("{signal}: stopping, calls in progress may finish; signal again to stop at once");
    let cut_off = daemon.stop()?;
    match cut_off {
        0 => tracing::info!("stopped"),
        _ => {
            tracing::warn!("stopped; {cut_off} calls were cut off after the time that --drain-seconds gives")
        }
    }
    Ok(())
}
