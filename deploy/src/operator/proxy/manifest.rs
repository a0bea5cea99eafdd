//! The objects, as they are applied.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde_json::{Map, Value, json};
use sidekey_core::Secret;

use super::{PORTS, port, proxied};
use crate::Error;
use crate::inject::{self, Minter};
use crate::model::{Key, SecretEncryption, names};
use crate::operator::roll::plane::namespace;
use crate::report;

/// The label that tells these pods from others.
pub(super) const SELECTOR: (&str, &str) = ("app.kubernetes.io/name", names::PROVIDERS);
/// The files of the proxies.
pub(super) const FILES: &str = "sidekey-proxy";
/// Where proxies have their certificates.
const TLS: &str = "/etc/sidekey-tls";
const REPLICAS: u64 = 2;
/// How long proxies serve on after they were told to end: longer than every node needs to hear
/// that the pod is out of the Service.
const LINGER: &str = "15s";
/// How long open requests may take after that.
const DRAIN: &str = "10s";
/// For both, and for the providers after them.
const GRACE_SECONDS: u64 = 60;
/// A provider that has just started logs in first.
const MIN_READY_SECONDS: u64 = 2;
/// One that logs in with a token waits for that first, and who mints it may have to ask again.
const MIN_READY_WITH_TOKENS: u64 = 20;
/// What these pods share with those of kube-apiserver: where they may run, how much they matter,
/// and how their images are got.
const FOLLOWED: [&str; 4] = ["priorityClassName", "tolerations", "imagePullSecrets", "hostAliases"];

/// What the objects are made from.
pub(super) struct Pattern<'a> {
    encryption: &'a SecretEncryption,
    namespace: String,
    listen: IpAddr,
    followed: Map<String, Value>,
}

impl<'a> Pattern<'a> {
    pub(super) fn new(encryption: &'a SecretEncryption) -> Result<Self, Error> {
        Ok(Self {
            encryption,
            namespace: namespace(encryption)?.to_owned(),
            listen: Ipv4Addr::UNSPECIFIED.into(),
            followed: Map::new(),
        })
    }

    /// Does as the pods of kube-apiserver do.
    pub(super) fn follow(&mut self, spec: &Value) {
        for field in FOLLOWED {
            if let Some(value) = spec.get(field) {
                self.followed.insert(field.to_owned(), value.clone());
            }
        }
    }

    pub(super) fn listen_on_ipv6(&mut self) {
        self.listen = Ipv6Addr::UNSPECIFIED.into();
    }

    pub(super) fn service(&self) -> Value {
        let ports = proxied(self.encryption).map(|key| {
            let port = port(key.id);
            json!({
                "name": format!("key-{}", key.id), "port": port, "targetPort": port,
                "protocol": "TCP",
            })
        });
        let ports: Vec<Value> = ports.collect();
        let spec = json!({"type": "ClusterIP", "selector": selector(), "ports": ports});
        self.object("v1", "Service", names::PROVIDERS, "spec", spec)
    }

    /// Where minters ask, if there are any.
    pub(super) fn servers(&self) -> Option<Value> {
        let plane = &self.encryption.spec.control_plane;
        let vendors = self.encryption.vendors();
        vendors.iter().find_map(|vendor| self.encryption.token(vendor)?.minted())?;
        let port = plane.port;
        let spec = json!({
            "type": "ClusterIP",
            "selector": plane.selector,
            "publishNotReadyAddresses": true,
            "ports": [{"name": "https", "port": port, "targetPort": port, "protocol": "TCP"}],
        });
        Some(self.object("v1", "Service", names::APISERVERS, "spec", spec))
    }

    /// Who mints the token of a vendor's provider.
    fn minter(&self, vendor: &str) -> Option<Minter> {
        let plane = &self.encryption.spec.control_plane;
        let host = format!("{}.{}.svc", names::APISERVERS, self.namespace);
        Some(Minter {
            token: self.encryption.token(vendor)?.clone(),
            kubeconfig: plane.kubeconfig.clone(),
            server: Some(format!("https://{host}:{}", plane.port)),
        })
    }

    /// Only the shims come in.
    pub(super) fn policy(&self) -> Value {
        let ports =
            proxied(self.encryption).map(|key| json!({"port": port(key.id), "protocol": "TCP"}));
        let ports: Vec<Value> = ports.collect();
        let shims = &self.encryption.spec.control_plane.selector;
        let spec = json!({
            "podSelector": {"matchLabels": selector()},
            "policyTypes": ["Ingress"],
            "ingress": [{
                "from": [{"podSelector": {"matchLabels": shims}}],
                "ports": ports,
            }],
        });
        self.object("networking.k8s.io/v1", "NetworkPolicy", names::PROVIDERS, "spec", spec)
    }

    pub(super) fn budget(&self) -> Value {
        let spec = json!({
            "minAvailable": 1,
            "selector": {"matchLabels": selector()},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        });
        self.object("policy/v1", "PodDisruptionBudget", names::PROVIDERS, "spec", spec)
    }

    /// A file for each proxy. They hold no secrets.
    pub(super) fn files(&self) -> Result<Value, Error> {
        let mut files = BTreeMap::new();
        for key in proxied(self.encryption) {
            let text = report::yaml(&self.config(key))?;
            files.insert(file(key), Secret::new(text.into_bytes()));
        }
        let data = crate::render::manifest(json!({}), &files, false)["data"].take();
        Ok(self.object("v1", "Secret", FILES, "data", data))
    }

    fn config(&self, key: &Key) -> Value {
        let path = |name: &str| format!("{TLS}/{name}");
        let port = port(key.id);
        json!({
            "listen": SocketAddr::from((self.listen, port)).to_string(),
            "plugin": key.listen,
            "tls": {"ca": path("ca.crt"), "cert": path("tls.crt"), "key": path("tls.key")},
            "clients": [{"san": names::SHIM_NAME, "allow": ["status", "encrypt", "decrypt"]}],
            "admin": format!("127.0.0.1:{}", port + PORTS),
            "linger": LINGER,
            "drain": DRAIN,
        })
    }

    pub(super) fn deployment(&self) -> Value {
        let minted = self.encryption.vendors().into_iter().any(|name| self.minter(name).is_some());
        let ready = if minted { MIN_READY_WITH_TOKENS } else { MIN_READY_SECONDS };
        let spec = json!({
            "replicas": REPLICAS,
            "revisionHistoryLimit": 2,
            "minReadySeconds": ready,
            "selector": {"matchLabels": selector()},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
            },
            "template": {"metadata": {"labels": self.labels()}, "spec": self.pod()},
        });
        self.object("apps/v1", "Deployment", names::PROVIDERS, "spec", spec)
    }

    fn pod(&self) -> Value {
        let mut providers = Vec::new();
        let mut volumes: Vec<Value> = Vec::new();
        for vendor in self.encryption.vendors() {
            let (mut provider, mut own) = inject::provider(vendor, &self.encryption.image(vendor));
            if let Some(minter) = self.minter(vendor) {
                let image = self.encryption.image("sidekey");
                let (container, volumes) = inject::minter(&minter, &image);
                providers.extend(container);
                own.extend(volumes);
                inject::add_mount(&mut provider, minter.reader_mount());
            }
            providers.push(provider);
            for volume in own {
                if !volumes.contains(&volume) {
                    volumes.push(volume);
                }
            }
        }
        volumes.extend([
            json!({"name": "proxy", "secret": {"secretName": FILES}}),
            json!({"name": "proxy-tls", "secret": {"secretName": names::PROXY_TLS_SECRET}}),
        ]);
        let proxies: Vec<Value> = proxied(self.encryption).map(|key| self.proxy(key)).collect();
        let mut pod = json!({
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "securityContext": {
                "runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"},
            },
            "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                apart(100, "kubernetes.io/hostname"), apart(50, "topology.kubernetes.io/zone"),
            ]}},
            "initContainers": providers,
            "containers": proxies,
            "volumes": volumes,
        });
        for (field, value) in &self.followed {
            pod[field.as_str()] = value.clone();
        }
        pod
    }

    fn proxy(&self, key: &Key) -> Value {
        let config = format!("--config={}/{}", names::MOUNT, file(key));
        let sockets = inject::sockets_of(&key.vendor);
        // It listens, nothing more: a key that is sick must not take the others away. Once it
        // listens it does so until it ends; to ask again would leave but lines in its log.
        let startup = json!({
            "exec": {"command": ["/sidekey-proxy", "probe", config]},
            "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 60,
        });
        json!({
            "name": format!("proxy-{}", key.id),
            "image": self.encryption.image("proxy"),
            "imagePullPolicy": "IfNotPresent",
            "args": [config],
            "ports": [{"containerPort": port(key.id), "protocol": "TCP"}],
            "securityContext": {
                "runAsNonRoot": true,
                "readOnlyRootFilesystem": true,
                "allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "startupProbe": startup,
            "resources": {
                "requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "128Mi"},
            },
            "volumeMounts": [
                // Those of its own provider, to connect and for nothing else; where keys of today
                // listen, and those of before.
                {
                    "name": sockets, "mountPath": names::provider_sockets(&key.vendor),
                    "readOnly": true,
                },
                {"name": sockets, "mountPath": names::SOCKETS, "readOnly": true},
                {"name": "proxy", "mountPath": names::MOUNT, "readOnly": true},
                {"name": "proxy-tls", "mountPath": TLS, "readOnly": true},
            ],
        })
    }

    fn labels(&self) -> Value {
        let (managed, by) = names::MANAGED_BY;
        json!({
            managed: by, SELECTOR.0: SELECTOR.1, names::LABEL_ENCRYPTION: self.encryption.name,
        })
    }

    /// Nothing owns it: what was encrypted through it must be readable also when somebody has
    /// deleted the SecretEncryption, or restored it with another uid.
    fn object(&self, api_version: &str, kind: &str, name: &str, part: &str, body: Value) -> Value {
        json!({
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": self.labels(),
            },
            part: body,
        })
    }
}

fn selector() -> Value {
    json!({SELECTOR.0: SELECTOR.1})
}

fn apart(weight: u64, topology: &str) -> Value {
    let term = json!({"topologyKey": topology, "labelSelector": {"matchLabels": selector()}});
    json!({"weight": weight, "podAffinityTerm": term})
}

fn file(key: &Key) -> String {
    format!("key-{}.yaml", key.id)
}
