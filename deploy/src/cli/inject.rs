//! `sidekey inject`: sidecars into manifests, and out of them.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::inject::{self, Change, Injected, Profile, Sidecars, SocketLayout, Wanted};
use crate::{Console, Error, Exit, Report, files};

/// Put sidecars into the manifests of API servers, or take them out
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sidekey inject -f kube-apiserver.yaml --encryption cluster-a.yaml > with-sidecars.yaml
  sidekey inject -f /etc/kubernetes/manifests/kube-apiserver.yaml --provider vault --in-place
  kubectl get deployment kube-apiserver -o yaml | sidekey inject -f - --provider aws | kubectl apply -f -
  sidekey inject -f kube-apiserver.yaml --uninject --in-place
  sidekey inject -f deployment.yaml --profile hypershift --encryption hostedcluster.yaml
  sidekey inject -f pod.yaml --profile openshift --encryption cluster-a.yaml

Everything but what is put in stays as it is written, comments included. Injecting again takes out
first what an earlier run put in.

Exit codes: 0 done, 1 failed, 64 bad usage, or a manifest that cannot be changed.")]
pub(super) struct Args {
    /// Manifest: a Deployment, StatefulSet, DaemonSet or Pod, or several; - for stdin
    #[arg(short, long, value_name = "FILE")]
    filename: PathBuf,
    /// Take out what was put in
    #[arg(long, conflicts_with_all = ["encryption", "provider", "image"])]
    uninject: bool,
    /// A SecretEncryption, or a HostedCluster, that says which sidecars
    #[arg(short, long, value_name = "FILE")]
    encryption: Option<PathBuf>,
    /// A vendor whose provider is put in, in the place of --encryption; several times
    #[arg(short, long, value_name = "NAME", conflicts_with = "encryption")]
    provider: Vec<String>,
    /// Whose names, sockets and mounts
    #[arg(long, value_enum, default_value_t)]
    profile: Profile,
    /// The container that is to encrypt [default: kube-apiserver, or what --encryption says]
    #[arg(short, long, value_name = "NAME")]
    container: Option<String>,
    /// An image, such as shim=registry.example/sidekey-shim:1; several times
    #[arg(long, value_name = "NAME=IMAGE", value_parser = pair)]
    image: Vec<(String, String)>,
    /// Files come from the node's /etc/sidekey; always so for a Pod
    #[arg(long = "static")]
    static_pod: bool,
    /// Leave the container's flags alone, and say which it needs
    #[arg(long)]
    no_flags: bool,
    /// OpenShift: the Secret of this revision, such as encryption-config-7
    #[arg(long, value_name = "NAME")]
    encryption_config_secret: Option<String>,
    /// HyperShift: also put in the minter of tokens, from this image
    #[arg(long, value_name = "IMAGE")]
    token_minter_image: Option<String>,
    /// Write to this file
    #[arg(long, value_name = "FILE", conflicts_with = "in_place")]
    to: Option<PathBuf>,
    /// Write to the file that was read
    #[arg(long)]
    in_place: bool,
}

/// What was done.
#[derive(Debug, Serialize)]
struct Done {
    file: String,
    taken_out: bool,
    objects: Vec<Change>,
    warnings: Vec<String>,
}

pub(super) fn run(args: &Args, console: &Console) -> Result<Exit, Error> {
    let text = read(&args.filename)?;
    let name = args.filename.display();
    let injected =
        if args.uninject { inject::uninject(&text) } else { inject::inject(&text, &wanted(args)?) };
    let injected = injected.map_err(|error| {
        let hint = error.advice().map(str::to_owned);
        let error = Error::usage(name.to_string()).because(error);
        hint.into_iter().fold(error, Error::hint)
    })?;
    let target = match (&args.to, args.in_place) {
        (Some(path), _) => Some(path),
        (None, true) if args.filename == Path::new("-") => {
            return Err(Error::usage("stdin cannot be written to").hint("leave --in-place out"));
        }
        (None, true) => Some(&args.filename),
        (None, false) => None,
    };
    for warning in &injected.warnings {
        console.warn(warning);
    }
    if args.uninject && !injected.changes.is_empty() {
        console.note(CENSUS);
    }
    let Injected { text, changes, warnings } = injected;
    let Some(path) = target else {
        // That nobody reads on is no failure.
        let _ = std::io::stdout().write_all(text.as_bytes());
        if changes.is_empty() {
            console.note("nothing was put in, so nothing was taken out");
        }
        return Ok(Exit::Success);
    };
    let mode = mode(path);
    files::replace(path, text.as_bytes(), mode)?;
    let file = path.display().to_string();
    console.answer(&Done { file, taken_out: args.uninject, objects: changes, warnings })?;
    Ok(Exit::Success)
}

/// What must be so before sidecars go.
const CENSUS: &str = "before this is applied: what is encrypted through these sidecars can be read through them alone.
Decrypt it first (identity first in EncryptionConfiguration, then `sidekey migrate`), and go on only when
`sidekey census` shows no object under any of their provider names.";

fn wanted(args: &Args) -> Result<Wanted, Error> {
    let mut wanted = match &args.encryption {
        Some(path) => {
            let text = read(path)?;
            let described = inject::described(&text, args.profile, &path.display().to_string())?;
            Wanted {
                container: described.container,
                sidecars: described.sidecars,
                images: described.images,
                static_pod: args.static_pod,
                flags: !args.no_flags,
            }
        }
        None => Wanted {
            container: "kube-apiserver".to_owned(),
            sidecars: by_name(args)?,
            images: BTreeMap::new(),
            static_pod: args.static_pod,
            flags: !args.no_flags,
        },
    };
    wanted.images.extend(args.image.iter().cloned());
    if let Some(container) = &args.container {
        wanted.container.clone_from(container);
    }
    match &mut wanted.sidecars {
        Sidecars::OpenShift { secret, .. } => secret.clone_from(&args.encryption_config_secret),
        Sidecars::HyperShift { minter, .. } => minter.clone_from(&args.token_minter_image),
        Sidecars::Sidekey { .. } | Sidecars::Configuration => {}
    }
    Ok(wanted)
}

fn by_name(args: &Args) -> Result<Sidecars, Error> {
    if args.profile != Profile::Sidekey {
        let profile = args.profile;
        return Err(Error::usage(format!("the profile {profile} needs to know the keys"))
            .hint("describe them with --encryption FILE"));
    }
    if args.provider.is_empty() {
        return Err(Error::usage("which sidecars are to be put in?")
            .hint("give --encryption FILE, or --provider NAME for each vendor"));
    }
    let label = |name: &&String| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        name.is_empty() || name.len() > 40 || !name.bytes().all(inner) || name.starts_with('-')
    };
    let wrong: Vec<_> = args.provider.iter().filter(label).cloned().collect();
    if !wrong.is_empty() {
        return Err(Error::usage(format!("not the name of a provider: {}", wrong.join(", "))));
    }
    let mut vendors = args.provider.clone();
    vendors.sort();
    vendors.dedup();
    Ok(Sidecars::Sidekey { vendors, minters: Vec::new(), layout: SocketLayout::Own })
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, image)) if !name.is_empty() && !image.is_empty() => {
            Ok((name.to_owned(), image.to_owned()))
        }
        _ => Err("must be NAME=IMAGE, such as shim=registry.example/sidekey-shim:1".to_owned()),
    }
}

fn read(path: &Path) -> Result<String, Error> {
    let mut text = String::new();
    let read = if path == Path::new("-") {
        std::io::stdin().read_to_string(&mut text)
    } else {
        std::fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text))
    };
    read.map_err(|error| Error::usage(format!("cannot read {}", path.display())).because(error))?;
    Ok(text)
}

/// That of the file that is replaced.
fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).map_or(0o644, |metadata| metadata.permissions().mode() & 0o7777)
}

impl Report for Done {
    fn text(&self, _console: &Console) -> String {
        let verb = if self.taken_out { "without" } else { "with" };
        let line = |change: &Change| {
            let (object, profile) = (&change.object, change.profile);
            format!("{object}: {verb} {} (profile {profile})", change.containers.join(", "))
        };
        match self.objects.as_slice() {
            [] => format!("{}: nothing was put in, so nothing was taken out", self.file),
            objects => objects.iter().map(line).collect::<Vec<_>>().join("\n"),
        }
    }
}
