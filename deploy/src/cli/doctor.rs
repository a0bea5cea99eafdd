//! `sidekey doctor`: what is wrong here, and what to do about it.

use std::path::PathBuf;

use serde::Serialize;
use sidekey_core::config::parse_duration;

use super::fleet::{FleetArgs, Plane};
use crate::doctor::{self, Finding, Level, Options};
use crate::fleet::Wanted;
use crate::{Console, Error, Exit, Report, Table};

/// Look for what keeps encryption from working here, or will do so soon, and say what to do
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sidekey doctor                                   # on a control-plane node, as root
  sidekey doctor --config-dir /etc/sidekey --socket-dir /var/run/kmsplugin --bin-dir /opt/sidekey
  sidekey doctor --no-node -n clusters-a --hosted-kubeconfig a.kubeconfig   # a hosted control plane

Exit codes: 0 well (there may be warnings), 3 problems, 64 bad usage.")]
pub(super) struct Args {
    /// What static pods mount: kube-apiserver/, shim/ and one directory for each vendor
    #[arg(long, value_name = "DIR", default_value = "/etc/sidekey")]
    config_dir: PathBuf,
    /// Where the sockets are
    #[arg(long, value_name = "DIR", default_value = "/var/run/kmsplugin")]
    socket_dir: PathBuf,
    /// Static manifest of kube-apiserver
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/kubernetes/manifests/kube-apiserver.yaml"
    )]
    manifest: PathBuf,
    /// EncryptionConfiguration, if it is not in the directory of configurations
    #[arg(long, value_name = "FILE")]
    encryption_config: Option<PathBuf>,
    /// Directory of sidekey-shim and the providers, which judge their files [default: $PATH]
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// A certificate that ends sooner than this is a warning
    #[arg(long, value_name = "TIME", default_value = "336h")]
    expiry: String,
    /// Do not look at this host: ask the cluster alone
    #[arg(long)]
    no_node: bool,
    #[command(flatten)]
    fleet: FleetArgs,
}

/// The answer.
#[derive(Serialize)]
struct Answer {
    problems: usize,
    warnings: usize,
    findings: Vec<Finding>,
}

pub(super) fn run(args: &Args, console: &Console) -> Result<Exit, Error> {
    let expiry =
        parse_duration(&args.expiry).map_err(|text| Error::usage(format!("--expiry: {text}")))?;
    let options = Options {
        config_dir: args.config_dir.clone(),
        socket_dir: args.socket_dir.clone(),
        manifest: args.manifest.clone(),
        encryption_config: args.encryption_config.clone(),
        bin_dir: args.bin_dir.clone(),
        timeout: args.fleet.limit()?,
        expiry,
    };
    let findings = super::block_on(async {
        let mut findings = Vec::new();
        if !args.no_node {
            findings.extend(doctor::examine(&options).await);
        }
        if args.no_node || args.fleet.asks_somebody() {
            findings.extend(cluster(args).await?);
        }
        Ok(findings)
    })?;
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let (problems, warnings) = (count(Level::Problem), count(Level::Warning));
    console.answer(&Answer { problems, warnings, findings })?;
    Ok(if problems > 0 { Exit::No } else { Exit::Success })
}

/// The replicas, and the clock of the API server.
async fn cluster(args: &Args) -> Result<Vec<Finding>, Error> {
    let fleet = args.fleet.fleet(&Plane::default()).await?;
    let mut findings = doctor::examine_cluster(&fleet, &Wanted::default()).await;
    if args.fleet.uses_cluster() {
        let config = args.fleet.access.config().await?;
        let name = config.cluster_url.to_string();
        let client = args.fleet.access.client().await?;
        let limit = args.fleet.limit()?;
        // One that cannot be reached has been named already.
        if let Ok(Ok(finding)) = tokio::time::timeout(limit, doctor::clock(&client, &name)).await {
            findings.extend(finding);
        }
    }
    Ok(findings)
}

impl Report for Answer {
    fn text(&self, console: &Console) -> String {
        let mut table = Table::new(["", "area", "what", "finding"]);
        for finding in &self.findings {
            let level = match finding.level {
                Level::Ok => console.good("ok"),
                Level::Warning => "warning".to_owned(),
                Level::Problem => console.bad("problem"),
            };
            let (area, subject) = (finding.area.label().to_owned(), finding.subject.clone());
            table.row([level, area, subject, finding.text.clone()]);
        }
        let bad = self.findings.iter().filter(|finding| finding.level != Level::Ok);
        let fixes: Vec<String> = bad
            .filter_map(|one| {
                Some(format!("  {}: {}\n    {}", one.subject, one.text, one.fix.as_ref()?))
            })
            .collect();
        let mut parts = vec![table.render()];
        if !fixes.is_empty() {
            parts.push(format!("what to do:\n{}", fixes.join("\n")));
        }
        parts.push(match (self.problems, self.warnings) {
            (0, 0) => console.good("all well"),
            (0, warnings) => format!("no problems, {warnings} to look at"),
            (problems, warnings) => {
                console.bad(&format!("problems: {problems}, to look at: {warnings}"))
            }
        });
        parts.join("\n\n")
    }
}
