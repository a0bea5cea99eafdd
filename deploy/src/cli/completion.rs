//! `sidekey completion`: what a shell needs to complete command lines.

use clap_complete::Shell;

use crate::{Console, Error, Exit};

/// Print what your shell needs to complete sidekey's command lines
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sidekey completion bash > /etc/bash_completion.d/sidekey
  sidekey completion zsh > ~/.zfunc/_sidekey
  sidekey completion fish > ~/.config/fish/completions/sidekey.fish

Exit codes: 0 done, 64 bad usage.")]
pub(super) struct Args {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

pub(super) fn run(args: &Args, _console: &Console) -> Result<Exit, Error> {
    // That nobody reads on is no failure.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), &script(args.shell));
    Ok(Exit::Success)
}

/// What the shell reads.
pub(super) fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut super::command(), "sidekey", &mut script);
    script
}
