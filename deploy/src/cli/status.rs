//! `sidekey status`: what runs, on every replica.

mod show;

use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde::Serialize;

use super::fleet::{FleetArgs, Plane};
use crate::cluster::refused;
use crate::fleet::{Findings, Fleet, Observation, Wanted};
use crate::model::{SecretEncryption, names};
use crate::{Console, Error, Exit};

/// Between two looks of --watch.
const WATCH: Duration = Duration::from_secs(2);

/// Show what runs on every replica: keys, roles, revision, health, and what kube-apiservers use
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sidekey status -n clusters-a --hosted-kubeconfig a.kubeconfig   # a hosted control plane
  sidekey status -f encryption.yaml --hosted-kubeconfig a.kubeconfig
  sidekey status -n kube-system -l component=kube-apiserver --standalone
  sidekey status --shim unix:///var/run/kmsplugin/shim-admin.sock --config-dir /etc/sidekey   # on a node
  sidekey status -n clusters-a --watch -o json

Exit codes: 0 all is as published, 1 somebody could not be asked, 3 something is not as published, 64 bad usage.")]
pub(super) struct Args {
    #[command(flatten)]
    fleet: FleetArgs,
    /// SecretEncryption of the control plane: its pods are asked, its keys and roles are compared
    #[arg(short, long, value_name = "FILE")]
    filename: Option<PathBuf>,
    /// Directory that `sidekey publish --to-dir` fills: its revision is what should be in use
    #[arg(long, value_name = "DIR")]
    config_dir: Option<PathBuf>,
    /// Look again and again, and show what has changed
    #[arg(short, long)]
    watch: bool,
}

/// The answer.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    wanted: Wanted,
    #[serde(flatten)]
    seen: Observation,
    #[serde(flatten)]
    findings: Findings,
}

/// Which control plane, and how it should be.
struct Scene {
    plane: Plane,
    namespace: Option<String>,
    wanted: Wanted,
}

impl Scene {
    fn of(args: &Args, document: Option<&SecretEncryption>) -> Self {
        let plane = document.map(Plane::of).unwrap_or_default();
        let namespace = args.fleet.namespace.clone().or_else(|| plane.namespace.clone());
        let wanted = document.map(Wanted::of).unwrap_or_default();
        Self { plane, namespace, wanted }
    }
}

pub(super) fn run(args: &Args, console: &Console) -> Result<Exit, Error> {
    super::block_on(async {
        let document = args.filename.as_deref().map(super::fleet::read_document).transpose()?;
        let scene = Scene::of(args, document.as_ref());
        let fleet = args.fleet.fleet(&scene.plane).await?;
        if !args.watch {
            return look(args, &scene, &fleet, console, &mut None).await;
        }
        let mut last = None;
        let mut exit = Exit::Success;
        loop {
            exit = tokio::select! {
                looked = look(args, &scene, &fleet, console, &mut last) => looked?,
                _ = tokio::signal::ctrl_c() => return Ok(exit),
            };
            tokio::select! {
                () = tokio::time::sleep(WATCH) => {}
                _ = tokio::signal::ctrl_c() => return Ok(exit),
            }
        }
    })
}

/// Looks once; shows it unless it is what was shown last.
async fn look(
    args: &Args,
    scene: &Scene,
    fleet: &Fleet,
    console: &Console,
    last: &mut Option<String>,
) -> Result<Exit, Error> {
    let mut wanted = scene.wanted.clone();
    let mut seen = fleet.observe().await?;
    match published(args, scene).await {
        Ok(revision) => wanted.revision = revision,
        Err(error) => seen.notes.push(format!("what is published: {}", error.report())),
    }
    let findings = seen.judge(&wanted);
    let exit = match &findings {
        Findings { wrong, .. } if !wrong.is_empty() => Exit::No,
        Findings { silent, .. } if !silent.is_empty() => Exit::Failure,
        _ => Exit::Success,
    };
    let status = Status { wanted, seen, findings };
    let state = show::digest(&status);
    if last.as_ref() != Some(&state) {
        if last.is_some() {
            console.note("");
        }
        console.answer(&status)?;
        *last = Some(state);
    }
    Ok(exit)
}

/// The revision that every shim should have; `None` if nobody says.
async fn published(args: &Args, scene: &Scene) -> Result<Option<u64>, Error> {
    if let Some(dir) = &args.config_dir {
        let path = dir.join("shim").join(names::CONFIG_FILE);
        let document = sidekey_core::read_file(&path).map_err(|error| {
            Error::failed(format!("cannot read {}", path.display())).because(error)
        })?;
        return Ok(number(&document["revision"]));
    }
    let Some(namespace) = &scene.namespace else { return Ok(None) };
    let secrets: Api<Secret> = Api::namespaced(args.fleet.access.client().await?, namespace);
    let head = secrets.get_metadata_opt(names::SHIM_SECRET).await;
    let head = head.map_err(|error| refused("cannot read Secret sidekey-shim", error))?;
    let annotations = head.and_then(|head| head.metadata.annotations).unwrap_or_default();
    Ok(annotations.get(names::ANNOTATION_REVISION).and_then(|text| text.parse().ok()))
}

fn number(value: &serde_json::Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}
