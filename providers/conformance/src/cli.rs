//! The command line.

use std::process::Command;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use sidekey_conformance::{Hook, Options, Plugin, Selection};
use sidekey_core::Endpoint;

const EXAMPLES: &str = "\
Examples:
  Judge whatever listens there, with nothing but its socket:
    sidekey-conformance --socket /var/run/kmsplugin/kms.sock

  Judge restart and rotation too, and take nothing unjudged:
    sidekey-conformance --socket unix:///run/kms.sock --strict \\
      --restart-cmd 'systemctl kill -s KILL kms && systemctl start kms' \\
      --rotate-cmd 'vault write -f transit/keys/kms/rotate' \\
      --backend-calls-cmd 'curl -s localhost:8093/metrics | grep ^kms_backend_calls_total'

  What is judged, and why:
    sidekey-conformance --list
    sidekey-conformance --list --only rotation -o json

Exit codes: 0 every check that was run has passed; 1 a check has failed or nobody
listens; 64 the command line makes no sense.";

/// Judges a KMS v2 plugin, whoever made it, through its unix socket.
///
/// The plugin is driven as kube-apiserver drives it, and then as an attacker would.
/// Its key is used, but nothing is stored; without the hooks nothing is changed.
#[derive(Debug, Parser)]
#[command(name = "sidekey-conformance", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// The plugin's socket: /path, unix:///path or unix:///@abstract
    #[arg(long, value_name = "SOCKET")]
    socket: Option<Endpoint>,

    /// How to print the verdicts
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,

    /// Run only this check or group (may be repeated)
    #[arg(long, value_name = "ID")]
    pub(crate) only: Vec<String>,

    /// Leave this check or group out (may be repeated)
    #[arg(long, value_name = "ID")]
    pub(crate) skip: Vec<String>,

    /// List the checks with what they promise and why, and judge nothing
    #[arg(long)]
    pub(crate) list: bool,

    /// Fail also if a check could not be run
    #[arg(long)]
    pub(crate) strict: bool,

    /// Shell command that kills the plugin with signal 9 and starts it again
    #[arg(long, value_name = "COMMAND")]
    restart_cmd: Option<String>,

    /// Shell command that makes the KMS rotate the key
    #[arg(long, value_name = "COMMAND")]
    rotate_cmd: Option<String>,

    /// Shell command whose last word is the number of backend calls so far
    #[arg(long, value_name = "COMMAND")]
    backend_calls_cmd: Option<String>,

    /// Wait that long for the plugin to become healthy before judging it
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) wait: Option<Duration>,

    /// How long one call may take, as `timeout` in EncryptionConfiguration
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "3s")]
    timeout: Duration,

    /// How long the slowest 1 % of Status calls may take
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s")]
    status_bound: Duration,

    /// How long the plugin may take to be back after a restart
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s")]
    restart_deadline: Duration,

    /// How long the plugin may take to notice a rotation
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "2m")]
    rotation_deadline: Duration,
}

/// How to print.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Output {
    /// For people
    Table,
    /// For programs
    Json,
}

impl Cli {
    /// The plugin to judge, if there is one on the command line.
    pub(crate) fn plugin(&self) -> Option<Plugin> {
        let mut plugin = Plugin::new(self.socket.clone()?);
        plugin.restart = self.restart_cmd.as_deref().map(shell).map(Hook::command);
        plugin.rotate = self.rotate_cmd.as_deref().map(shell).map(Hook::command);
        plugin.backend_calls = self.backend_calls_cmd.as_deref().map(shell).map(Hook::number);
        Some(plugin)
    }

    pub(crate) fn options(&self, selection: Selection) -> Options {
        Options {
            selection,
            deadline: self.timeout,
            status_bound: self.status_bound,
            restart_deadline: self.restart_deadline,
            rotation_deadline: self.rotation_deadline,
        }
    }
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

/// A whole number with its unit: `500ms`, `3s`, `2m`.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        _ => return Err("write a whole number and its unit: 500ms, 3s or 2m".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "the number is missing or too large")?;
    match number.checked_mul(millis) {
        Some(0) => Err("it must be more than nothing".to_owned()),
        Some(millis) => Ok(Duration::from_millis(millis)),
        None => Err("the number is too large".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("3s"), Ok(Duration::from_secs(3)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "3", "s", "-1s", "1.5s", "3h", "0s", "99999999999999999999s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert!(duration("18446744073709551615m").is_err());
    }

    #[test]
    fn defaults_are_those_of_the_library() {
        let cli = Cli::try_parse_from(["sidekey-conformance"]).unwrap();
        let (ours, library) = (cli.options(Selection::default()), Options::default());
        assert_eq!(format!("{ours:?}"), format!("{library:?}"));
    }
}
