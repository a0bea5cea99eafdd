//! `sidekey render`: what pods mount, made of one document.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::Value;

use super::source::{Source, list, names_cluster};
use crate::cluster::Access;
use crate::model::names;
use crate::publish::{Live, Options, Target, View, check};
use crate::render::profile::{self, Layout, Profile};
use crate::{Console, Error, Exit, Output, Report, Table, files};

/// Show what pods mount: EncryptionConfiguration, heads and revision, or the layouts of others
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sidekey render -f cluster-a.yaml                                # what there would be, nothing secret
  sidekey render -f cluster-a.yaml -o yaml | kubectl diff -f -    # rendered Secrets: mind the credentials
  sidekey render -f cluster-a.yaml --from-dir secrets --to-dir out && sidekey-shim check --config out/sidekey-shim/config.yaml
  sidekey render -f hostedcluster.yaml --profile hypershift --part kas-secret-encryption-config -o yaml
  sidekey render -f apiserver.yaml --profile openshift --kubeconfig admin.conf -o json

With -o yaml and -o json the output holds credentials. Files are written with mode 0600.
Secrets and ConfigMaps that the document refers to are read from --from-dir, or, with --kubeconfig
or --context, from the cluster.

Exit codes: 0 done, 1 failed, 3 refused by --check-against, 64 bad usage or document.")]
pub(super) struct Args {
    #[command(flatten)]
    source: Source,
    /// Whose layout
    #[arg(long, value_enum, default_value_t)]
    profile: Profile,
    /// Number of the revision
    #[arg(long, value_name = "N", default_value_t = 1)]
    revision: u64,
    /// Only this object; several times
    #[arg(long, value_name = "NAME")]
    part: Vec<String>,
    /// Write the files into directories: DIR/<object>/<file>
    #[arg(long, value_name = "DIR")]
    to_dir: Option<PathBuf>,
    /// Refuse what is not safe after this: an EncryptionConfiguration, a shim's file, a
    /// directory of publish --to-dir, or `cluster`; several times
    #[arg(long, value_name = "LIVE")]
    check_against: Vec<PathBuf>,
}

/// What there would be, without anything secret.
#[derive(Serialize)]
struct Summary {
    objects: Vec<ObjectSummary>,
    #[serde(skip)]
    documents: Vec<Value>,
}

#[derive(Serialize)]
struct ObjectSummary {
    name: String,
    files: Vec<FileSummary>,
}

#[derive(Serialize)]
struct FileSummary {
    name: String,
    bytes: usize,
    sha256: String,
}

pub(super) fn run(args: &Args, console: &Console) -> Result<Exit, Error> {
    let objects = super::block_on(objects(args))?;
    if args.profile != Profile::Sidekey {
        console.warn(crate::inject::ONE_DIRECTORY);
    }
    let wanted = |object: &&Value| {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        args.part.is_empty() || args.part.iter().any(|part| part == name)
    };
    let objects: Vec<Value> = objects.iter().filter(wanted).cloned().collect();
    if objects.is_empty() {
        return Err(Error::usage("no object is named like --part")
            .hint("`sidekey render` without --part shows their names"));
    }
    if let Some(directory) = &args.to_dir {
        write(directory, &objects)?;
    }
    let summary = summary(objects);
    match console.output() {
        Output::Table => console.answer(&summary)?,
        _ if args.to_dir.is_some() => console.answer(&summary)?,
        _ => console.answer(&Objects(list(&summary.documents)))?,
    }
    Ok(Exit::Success)
}

async fn objects(args: &Args) -> Result<Vec<Value>, Error> {
    let source = &args.source;
    let document = source.document()?;
    let Access { kubeconfig, context } = &source.access;
    let online = kubeconfig.is_some()
        || context.is_some()
        || args.check_against.iter().any(|path| names_cluster(path));
    let client = if online { Some(source.access.client().await?) } else { None };
    let namespace = source.target_namespace(&document);
    let loaded = source.load(document, args.profile, client.as_ref(), &Live::default()).await?;
    let layout = Layout {
        profile: args.profile,
        component: &source.component,
        revision: args.revision,
        phase: source.phase(),
    };
    let objects = profile::objects(&loaded.encryption, &loaded.files, &layout)?;
    for path in &args.check_against {
        let old = match (&client, names_cluster(path)) {
            (Some(client), true) => {
                let namespace = namespace.clone().ok_or_else(no_namespace)?;
                let target = Target::Cluster { client: client.clone(), namespace };
                target.live(&loaded.encryption.name).await?.views()?
            }
            _ => vec![View::load(path)?],
        };
        for old in old {
            check::verify(&old, &view(&objects)?, &Options::default())?;
        }
    }
    Ok(objects)
}

/// What the objects say together.
fn view(objects: &[Value]) -> Result<View, Error> {
    let mut view = View::default();
    for object in objects {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        if names::revision_number(name).is_some() {
            continue;
        }
        for (file, content) in contents(object) {
            if ["encryption.yaml", "config.yaml", "encryption-config"].contains(&file.as_str())
                && !name.starts_with("sidekey-provider-")
            {
                view.add_text(&String::from_utf8_lossy(&content))?;
            }
        }
    }
    Ok(view)
}

pub(super) fn no_namespace() -> Error {
    Error::usage("the document names no namespace").hint("give it with --namespace")
}

fn contents(object: &Value) -> Vec<(String, Vec<u8>)> {
    let data = object["data"].as_object().into_iter().flatten();
    let decode = |value: &Value| STANDARD.decode(value.as_str().unwrap_or_default());
    data.filter_map(|(name, value)| Some((name.clone(), decode(value).ok()?))).collect()
}

fn write(directory: &Path, objects: &[Value]) -> Result<(), Error> {
    use std::os::unix::fs::DirBuilderExt;
    for object in objects {
        let place = directory.join(object["metadata"]["name"].as_str().unwrap_or_default());
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&place);
        made.map_err(|error| {
            Error::failed(format!("cannot make {}", place.display())).because(error)
        })?;
        for (name, content) in contents(object) {
            files::replace(&place.join(name), &content, 0o600)?;
        }
    }
    Ok(())
}

fn summary(documents: Vec<Value>) -> Summary {
    let file = |(name, content): (String, Vec<u8>)| FileSummary {
        name,
        bytes: content.len(),
        sha256: sidekey_core::hex(&sidekey_core::sha256(&content)),
    };
    let objects = documents.iter().map(|object| ObjectSummary {
        name: object["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
        files: contents(object).into_iter().map(file).collect(),
    });
    Summary { objects: objects.collect(), documents }
}

/// The objects themselves, secrets included.
#[derive(Serialize)]
#[serde(transparent)]
struct Objects(Value);

impl Report for Objects {
    fn text(&self, _console: &Console) -> String {
        String::new()
    }
}

impl Report for Summary {
    fn text(&self, console: &Console) -> String {
        let mut table = Table::new(["secret", "file", "bytes", "sha256"]);
        for object in &self.objects {
            for file in &object.files {
                let hash = console.dim(&file.sha256[..12]);
                let bytes = file.bytes.to_string();
                table.row([object.name.clone(), file.name.clone(), bytes, hash]);
            }
        }
        table.render()
    }
}
