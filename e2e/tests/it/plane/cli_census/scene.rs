//! A control plane whose kube-apiserver is told to write in one way after the other.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use hyper::Method;
use serde_json::{Value, json};
use sidekey_e2e::apiserver::{KubeApiserver, Options};
use sidekey_e2e::binaries::{self, Outcome};
use sidekey_e2e::shim::ShimConfig;
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{
    ControlPlane, EncryptionConfiguration, LocalPlugin, Shim, Stanza, Stored, eventually,
};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

/// What kube-apiserver writes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    Clear,
    Aescbc,
    Aesgcm,
    Secretbox,
    /// A plugin without the shim.
    Direct,
    Shim,
}

/// Dropped, and so ended, in this order.
pub(crate) struct Scene {
    pub(crate) server: KubeApiserver,
    pub(crate) shim: Shim,
    pub(crate) keks: Vec<LocalPlugin>,
    pub(crate) plane: ControlPlane,
    names: std::sync::Mutex<Vec<String>>,
}

/// What the command has said.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) code: Option<i32>,
    pub(crate) answer: Value,
    #[allow(dead_code, reason = "shown when a test fails")]
    pub(crate) stderr: String,
}

impl Scene {
    pub(crate) async fn start(name: &str) -> Result<Self> {
        let plane = ControlPlane::start(name).await?;
        let mut keks = Vec::new();
        for name in ["kek-1", "kek-2"] {
            keks.push(LocalPlugin::start(&plane.scratch, name).await?);
        }
        let config = ShimConfig::new(1).write(1, keks[0].endpoint());
        let shim = Shim::start(&plane.scratch, "shim", &config).await?;
        let encryption = encryption(Write::Clear, &shim, &keks);
        let server = KubeApiserver::start(&plane, Options::new("a").encryption(encryption)).await?;
        let scene = Self { server, shim, keks, plane, names: Default::default() };
        scene.define_widgets().await?;
        Ok(scene)
    }

    /// Has kube-apiserver write in that way from now on.
    pub(crate) async fn write_with(&mut self, way: Write) -> Result<()> {
        let text = encryption(way, &self.shim, &self.keks).to_string();
        std::fs::write(self.server.encryption_file(), text)?;
        self.server.restart().await
    }

    pub(crate) fn encryption_file(&self) -> String {
        self.server.encryption_file().display().to_string()
    }

    /// Where the first of two counts is kept.
    pub(crate) fn state(&self) -> PathBuf {
        self.plane.scratch.path().join("state.json")
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.names.lock().unwrap().clone()
    }

    /// A Secret and a custom resource of that name; of some a ConfigMap too.
    pub(crate) async fn create(&self, name: &str) -> Result<()> {
        let metadata = json!({"name": name});
        let secret = json!({"metadata": metadata, "stringData": {"word": name}});
        let client = self.server.client();
        client.send(Method::POST, SECRETS, Some(&secret)).await?;
        let widget = json!({
            "apiVersion": "example.com/v1", "kind": "Widget", "metadata": metadata, "word": name,
        });
        eventually("widgets can be created", PATIENCE, async || {
            client.send(Method::POST, WIDGETS, Some(&widget)).await.map(drop)
        })
        .await?;
        if name.starts_with("shim-") {
            let path = "/api/v1/namespaces/default/configmaps";
            let map = json!({"metadata": metadata, "data": {"word": name}});
            client.send(Method::POST, path, Some(&map)).await?;
        }
        self.names.lock().unwrap().push(name.to_owned());
        Ok(())
    }

    /// Updates all objects of that name without a change, as a migration does.
    pub(crate) async fn rewrite(&self, name: &str) -> Result<()> {
        for path in [SECRETS, WIDGETS] {
            self.update(&format!("{path}/{name}")).await?;
        }
        if name.starts_with("shim-") {
            self.update(&format!("/api/v1/namespaces/default/configmaps/{name}")).await?;
        }
        Ok(())
    }

    /// The keys of all objects under a key of the shim.
    pub(crate) async fn under_key(&self, key: u64) -> Result<BTreeSet<String>> {
        let wanted = format!("sidekey/{key}-");
        let entries = self.plane.etcd.list("/registry/").await?.into_iter();
        let under = entries.filter(|entry| {
            Stored::parse(&entry.value)
                .is_ok_and(|stored| stored.object.key_id.starts_with(&wanted))
        });
        Ok(under.map(|entry| entry.key).collect())
    }

    /// Updates one object without a change.
    pub(crate) async fn update(&self, path: &str) -> Result<()> {
        let client = self.server.client();
        let object = client.get(path).await?;
        client.send(Method::PUT, path, Some(&object)).await.map(drop)
    }

    async fn define_widgets(&self) -> Result<()> {
        let schema = json!({"openAPIV3Schema": {
            "type": "object", "x-kubernetes-preserve-unknown-fields": true,
        }});
        let crd = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "widgets.example.com"},
            "spec": {
                "group": "example.com", "scope": "Namespaced",
                "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
            },
        });
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        self.server.client().send(Method::POST, path, Some(&crd)).await.map(drop)
    }
}

/// How the census names what was written in that way.
pub(crate) fn stored_as(way: Write) -> (&'static str, Option<&'static str>) {
    match way {
        Write::Clear => ("clear", None),
        Write::Aescbc => ("aescbc", Some("cbc-key")),
        Write::Aesgcm => ("aesgcm", Some("gcm-key")),
        Write::Secretbox => ("secretbox", Some("box-key")),
        Write::Direct => ("kms-v2", Some("direct")),
        Write::Shim => ("kms-v2", Some("sidekey")),
    }
}

/// All providers, of which that one writes.
fn encryption(way: Write, shim: &Shim, keks: &[LocalPlugin]) -> EncryptionConfiguration {
    // 32 bytes.
    let secret = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
    let all =
        [Write::Shim, Write::Direct, Write::Aescbc, Write::Aesgcm, Write::Secretbox, Write::Clear];
    let first = std::iter::once(way).chain(all.into_iter().filter(|other| *other != way));
    let stanza = Stanza::new(["secrets", "configmaps", "widgets.example.com"]);
    let stanza = first.fold(stanza, |stanza, way| match (way, stored_as(way)) {
        (Write::Shim, _) => stanza.kms("sidekey", shim.endpoint()),
        (Write::Direct, _) => stanza.kms("direct", keks[0].endpoint()),
        (_, (kind, Some(name))) => stanza.keys(kind, &[(name, secret)]),
        _ => stanza.identity(),
    });
    EncryptionConfiguration::new().stanza(stanza)
}

pub(crate) async fn run(args: &[&str]) -> Result<Outcome> {
    binaries::run("sidekey", args).await
}

/// A census of the scene's etcd, as JSON.
pub(crate) async fn census(scene: &Scene, args: &[&str]) -> Result<Value> {
    // The first one is dead: the next one is asked.
    let endpoints = format!("http://127.0.0.1:1,{}", scene.plane.etcd.url());
    let head = ["census", "-o", "json", "--endpoints", &endpoints];
    let told = run(&[&head[..], args].concat()).await?.ok()?;
    serde_json::from_str(&told.stdout).with_context(|| told.stdout.clone())
}

pub(crate) async fn snapshot(file: &Path) -> Result<Value> {
    snapshot_with(file, &[]).await
}

pub(crate) async fn snapshot_with(file: &Path, args: &[&str]) -> Result<Value> {
    let head = ["census", "-o", "json", "--snapshot", file.to_str().context("not UTF-8")?];
    let told = run(&[&head[..], args].concat()).await?.ok()?;
    serde_json::from_str(&told.stdout).with_context(|| told.stdout.clone())
}

pub(crate) async fn may_drop(scene: &Scene, key: &str, args: &[&str]) -> Result<Told> {
    ask(scene, &[&["--may-drop", key][..], args].concat()).await
}

pub(crate) async fn may_drop_name(scene: &Scene, name: &str) -> Result<Told> {
    ask(scene, &["--may-drop-name", name]).await
}

pub(crate) fn exit(told: &Told) -> i32 {
    told.code.unwrap_or(-1)
}

async fn ask(scene: &Scene, args: &[&str]) -> Result<Told> {
    let (url, state) = (scene.plane.etcd.url(), scene.state());
    let state = state.to_str().context("not UTF-8")?;
    let head = ["census", "-o", "json", "--endpoints", &url, "--state", state];
    let Outcome { code, stdout, stderr } = run(&[&head[..], args].concat()).await?;
    let answer = serde_json::from_str(&stdout).with_context(|| format!("{stdout}\n{stderr}"))?;
    Ok(Told { code, answer, stderr })
}
