//! The document that render, publish and diff are given, and all that it refers to.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sidekey_core::config::document;

use crate::cluster::Access;
use crate::model::{KeyNumber, Role, SecretEncryption};
use crate::publish::Live;
use crate::render::apiserver::{self, ApiServer};
use crate::render::hosted::{self, Hosted};
use crate::render::profile::Profile;
use crate::render::{Phase, ResolvedFiles};
use crate::{Error, Exit};

/// Which document, and where what it refers to is.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Source {
    /// SecretEncryption, HostedCluster or OpenShift's APIServer; - for stdin
    #[arg(short, long, value_name = "FILE")]
    filename: PathBuf,
    /// Read Secrets and ConfigMaps as files: DIR/<name>/<key>
    #[arg(long, value_name = "DIR")]
    from_dir: Option<PathBuf>,
    /// Namespace of the control plane [default: the document's]
    #[arg(short, long, value_name = "NAME")]
    pub(super) namespace: Option<String>,
    /// New data is stored in clear for now: the first phase of turning encryption on
    #[arg(long)]
    pub(super) identity_first: bool,
    /// OpenShift: the API server that it is for
    #[arg(long, value_name = "NAME", default_value = "openshift-kube-apiserver")]
    pub(super) component: String,
    /// OpenShift: number of the key, where nothing is published yet
    #[arg(long, value_name = "N", default_value_t = 1)]
    key_id: u64,
    #[command(flatten)]
    pub(super) access: Access,
}

/// A document of one of the kinds.
pub(super) enum Document {
    Encryption(Box<SecretEncryption>),
    Hosted(Box<Hosted>),
    ApiServer(Box<ApiServer>),
}

/// The document as ours, with all that it refers to.
pub(super) struct Loaded {
    pub(super) encryption: SecretEncryption,
    pub(super) files: ResolvedFiles,
}

impl Source {
    /// This document, with everything else as it is by default.
    pub(super) fn of(filename: PathBuf, namespace: Option<String>, access: Access) -> Self {
        Self {
            filename,
            from_dir: None,
            namespace,
            identity_first: false,
            component: "openshift-kube-apiserver".to_owned(),
            key_id: 1,
            access,
        }
    }

    pub(super) fn phase(&self) -> Phase {
        if self.identity_first { Phase::IdentityFirst } else { Phase::Settled }
    }

    /// Reads and checks the document.
    pub(super) fn document(&self) -> Result<Document, Error> {
        let name = self.filename.display();
        let unreadable = |error| Error::usage(format!("cannot read {name}")).because(error);
        let text = if self.filename == Path::new("-") {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map_err(unreadable)?;
            text
        } else {
            std::fs::read_to_string(&self.filename).map_err(unreadable)?
        };
        let wrong = |problems: sidekey_core::config::Problems| {
            Error::usage(format!("{name} is not right\n{problems}"))
        };
        let value = document(&text).map_err(wrong)?;
        match value["kind"].as_str() {
            Some("HostedCluster") => {
                let hosted = hosted::parse(&value).map_err(wrong)?;
                if let Some((_, text)) = hosted.unsaid_login() {
                    return Err(Error::usage(format!("{name} is not right\n{text}")).hint(
                        "the operator reads that annotation; commands need a SecretEncryption",
                    ));
                }
                Ok(Document::Hosted(Box::new(hosted)))
            }
            Some("APIServer") => {
                let server = apiserver::parse(&value).map_err(wrong)?;
                Ok(Document::ApiServer(Box::new(server)))
            }
            _ => {
                let encryption = SecretEncryption::from_document(&value).map_err(wrong)?;
                Ok(Document::Encryption(Box::new(encryption)))
            }
        }
    }

    /// The namespace of the control plane.
    pub(super) fn target_namespace(&self, document: &Document) -> Option<String> {
        self.namespace.clone().or_else(|| match document {
            Document::Encryption(encryption) => encryption.namespace.clone(),
            Document::Hosted(hosted) => hosted.control_plane_namespace(),
            Document::ApiServer(_) => None,
        })
    }

    /// Makes ours of the document and reads what it refers to: from files, and from the cluster
    /// if there is a client. Documents of others know nothing of our numbers, nor of keys that
    /// they once named: `live` does.
    pub(super) async fn load(
        &self,
        document: Document,
        profile: Profile,
        client: Option<&kube::Client>,
        live: &Live,
    ) -> Result<Loaded, Error> {
        let namespace = self.target_namespace(&document);
        let mut places: Vec<String> = namespace.clone().into_iter().collect();
        let known = live.known()?;
        let mut encryption = match document {
            Document::Encryption(encryption) => *encryption,
            Document::ApiServer(server) => {
                places.insert(0, server.namespace().to_owned());
                let id = KeyNumber(self.key_id);
                with_live(server.translate(profile, &self.component, id, &known), live)?
            }
            Document::Hosted(hosted) => {
                let names = self.hosted_names(&hosted, client, &places).await?;
                with_live(hosted.translate(&names, &known)?, live)?
            }
        };
        if namespace.is_some() {
            encryption.namespace = namespace;
        }
        let files = self.files(&encryption, client, &places).await?;
        files.require(&encryption)?;
        Ok(Loaded { encryption, files })
    }

    /// HyperShift makes names of the content of some Secrets.
    async fn hosted_names(
        &self,
        hosted: &Hosted,
        client: Option<&kube::Client>,
        places: &[String],
    ) -> Result<ResolvedFiles, Error> {
        let mut probe = hosted.translate(&placeholder(hosted), &[])?;
        probe.spec.keys.clear();
        self.files(&probe, client, places).await
    }

    async fn files(
        &self,
        encryption: &SecretEncryption,
        client: Option<&kube::Client>,
        places: &[String],
    ) -> Result<ResolvedFiles, Error> {
        let beside = self.filename.parent().unwrap_or_else(|| Path::new("."));
        let mut files = ResolvedFiles::from_files(encryption, beside, self.from_dir.as_deref())?;
        if let Some(client) = client {
            for namespace in places {
                files.from_cluster(encryption, client, namespace).await?;
            }
        }
        Ok(files)
    }
}

/// Contents that give names of the right form, to learn what must be read.
fn placeholder(hosted: &Hosted) -> ResolvedFiles {
    let mut files = ResolvedFiles::default();
    for (index, source) in hosted.sources().into_iter().enumerate() {
        let byte = u8::try_from(index).unwrap_or_default();
        files.insert(source, sidekey_core::Secret::new(vec![byte; 32]));
    }
    files
}

/// Keys that are published and that the document no longer names go on reading.
fn with_live(mut encryption: SecretEncryption, live: &Live) -> Result<SecretEncryption, Error> {
    for mut key in live.keys()? {
        if encryption.key(key.id).is_none() {
            key.role = Role::Read;
            encryption.spec.keys.push(key);
        }
    }
    Ok(encryption)
}

/// The object that a path leads to, if it names the cluster itself.
pub(super) fn names_cluster(text: &Path) -> bool {
    text == Path::new("cluster")
}

/// What question commands end with.
pub(super) fn answer(yes: bool) -> Exit {
    if yes { Exit::Success } else { Exit::No }
}

/// A list that `kubectl apply` takes.
pub(super) fn list(objects: &[Value]) -> Value {
    serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects})
}
