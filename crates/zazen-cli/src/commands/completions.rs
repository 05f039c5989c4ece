//! `zazen completions` and `zazen man`: what a shell and `man` need, made from the command line
//! itself.

use crate::output;
use clap::{Args, Command};
use clap_complete::Shell;
use std::path::PathBuf;
use zazen_core::{Error, Result};

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen completions bash > ~/.local/share/bash-completion/completions/zazen
  zazen completions zsh > ~/.zfunc/_zazen         # with fpath+=~/.zfunc before compinit in ~/.zshrc
  zazen completions fish > ~/.config/fish/completions/zazen.fish")]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen man ~/.local/share/man/man1      # then: man zazen-push")]
pub(crate) struct Man {
    /// The folder; it is made if it is not there
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(crate) fn completions(arguments: &Completions, mut command: Command) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "zazen", &mut text);
    output::print_raw(&String::from_utf8_lossy(&text));
    Ok(())
}

pub(crate) fn man(arguments: &Man, command: Command) -> Result<()> {
    let within = |error| Error::io(format!("man pages in {}", arguments.folder.display()), error);
    std::fs::create_dir_all(&arguments.folder).map_err(within)?;
    clap_mangen::generate_to(command, &arguments.folder).map_err(within)?;
    output::note(format!("man pages are in {}", arguments.folder.display()));
    Ok(())
}
