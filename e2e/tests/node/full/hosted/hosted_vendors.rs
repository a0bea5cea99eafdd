//! Promise: HyperShift's pods for Azure and for IBM Cloud run our images as their own: what a
//! HostedCluster says is rendered, its sidecars encrypt, and after its rotation everything is read.
//!
//! Sidecars, arguments, variables and names of hosts are HyperShift's. Behind the names are **fakes**
//! of the vendors' services, whose authority the sidecars are told by `SSL_CERT_FILE`; the token that
//! HyperShift's minter would write for Azure is a Secret's.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sidekey_e2e::fakes::azure::{Azure, KeyKind, TENANT};
use sidekey_e2e::fakes::ibm::{KeyProtect, READER};
use sidekey_e2e::fakes::{Fake, Service};
use sidekey_e2e::hosted::Hosted;
use sidekey_e2e::wait::BROKEN;
use sidekey_e2e::{Kind, Scratch, Stored, binaries, images};

const AZURE_CLIENT: &str = "66666666-7777-8888-9999-000000000000";
const VAULT: &str = "sidekey-e2e";
const AZURE_HOSTS: [&str; 2] = ["sidekey-e2e.vault.azure.net", "login.microsoftonline.com"];
const IBM_HOSTS: [&str; 2] = ["us-south.kms.cloud.ibm.com", "iam.cloud.ibm.com"];
const HTTPS: u16 = 443;

/// A vendor as HyperShift knows it.
struct Vendor<'a> {
    name: &'static str,
    hosts: &'a [&'static str],
    /// The image of our provider.
    image: String,
    /// What the vendor's certificate is signed by.
    ca: &'a Path,
    /// Whether HyperShift mounts the directory of its socket at `/tmp`, in the place of another.
    sockets_in_tmp: bool,
    /// The volume that something of HyperShift's would fill, and the Secret that stands for it.
    token: Option<(&'static str, &'static str)>,
}

#[tokio::test]
async fn hypershifts_pods_for_azure_encrypt_and_rotate_with_our_image() {
    let scratch = Scratch::new("hosted-azure").unwrap();
    let fake = Fake::start_as(&scratch, "azure", &AZURE_HOSTS, Azure::new(AZURE_HOSTS[0]));
    let fake = fake.await.unwrap();
    let hosted = Hosted::start("hosted-azure", "no-token").await.unwrap();
    let (versions, token) = {
        let mut azure = fake.service();
        let token = azure.federated(AZURE_CLIENT).unwrap();
        let old = azure.make("kms", KeyKind::Rsa(2048)).unwrap();
        ([old, azure.rotate("kms").unwrap()], token)
    };
    hosted.put_secret("minted", &[("token", token)]).await.unwrap();
    let vendor = Vendor {
        name: "azure",
        hosts: &AZURE_HOSTS,
        image: image(&hosted, &scratch, "azure").await.unwrap(),
        ca: fake.ca(),
        sockets_in_tmp: false,
        token: Some(("azure-kms-cloud-token", "minted")),
    };
    let key =
        |version: &String| json!({"keyVaultName": VAULT, "keyName": "kms", "keyVersion": version});
    let kms = |azure: Value| {
        let mut azure = azure;
        azure["workloadIdentity"] = json!({"clientID": AZURE_CLIENT});
        json!({"provider": "Azure", "azure": azure})
    };
    let [old, new] = &versions;
    let states = [
        kms(json!({"activeKey": key(old)})),
        // Readable everywhere before anybody writes under it.
        kms(json!({"activeKey": key(old), "backupKey": key(new)})),
        kms(json!({"activeKey": key(new), "backupKey": key(old)})),
    ];
    let stored = lives(&hosted, &fake, &scratch, &vendor, &states).await.unwrap();
    assert!(stored.iter().all(|one| one.provider.starts_with("azure-")), "{stored:?}");
    assert_ne!(stored[0].provider, stored[2].provider, "HyperShift has a name for each version");
    // Both have the form that the plugin of OpenShift 4.19 and newer reads.
    assert!(stored.iter().all(|one| one.marked == Some("1".to_owned())), "{stored:?}");
}

#[tokio::test]
async fn hypershifts_pods_for_ibm_cloud_encrypt_and_rotate_with_our_image() {
    let scratch = Scratch::new("hosted-ibm").unwrap();
    let fake = Fake::start_as(&scratch, "ibm", &IBM_HOSTS, KeyProtect::default()).await.unwrap();
    let hosted = Hosted::start("hosted-ibm", "no-token").await.unwrap();
    let (instance, roots, api_key) = {
        let mut ibm = fake.service();
        let instance = ibm.instance();
        let roots = [ibm.create(&instance), ibm.create(&instance)];
        (instance, roots, ibm.api_key(&READER))
    };
    hosted.put_secret("ibm-kms", &[("iam_apikey", api_key)]).await.unwrap();
    let vendor = Vendor {
        name: "ibmcloud",
        hosts: &IBM_HOSTS,
        image: image(&hosted, &scratch, "ibmcloud").await.unwrap(),
        ca: fake.ca(),
        sockets_in_tmp: true,
        token: None,
    };
    let kms = |count: usize| {
        let keys: Vec<Value> = roots[..count]
            .iter()
            .zip(1..)
            .map(|(root, version)| {
                json!({
                    "crkID": root, "instanceID": instance, "correlationID": "e2e",
                    "url": format!("https://{}", IBM_HOSTS[0]), "keyVersion": version,
                })
            })
            .collect();
        let auth = json!({"type": "Unmanaged", "unmanaged": {"credentials": {"name": "ibm-kms"}}});
        json!({"provider": "IBMCloud", "ibmcloud": {"region": "us-south", "auth": auth, "keyList": keys}})
    };
    let stored = lives(&hosted, &fake, &scratch, &vendor, &[kms(1), kms(2)]).await.unwrap();
    assert!(stored.iter().all(|one| one.provider == "ibmv2"), "{stored:?}");
    assert_ne!(stored[0].key_id, stored[1].key_id, "the highest version writes");
}

/// What etcd holds of one Secret.
#[derive(Debug)]
struct Written {
    provider: String,
    key_id: String,
    /// The version of the format that Azure's plugins mark.
    marked: Option<String>,
}

/// Gives the control plane each of these descriptions, one after the other; in each a Secret is
/// written, and all are read.
async fn lives<S: Service>(
    hosted: &Hosted,
    fake: &Fake<S>,
    scratch: &Scratch,
    vendor: &Vendor<'_>,
    states: &[Value],
) -> Result<Vec<Written>> {
    let ca = std::fs::read_to_string(vendor.ca)?;
    hosted.put_secret("vendor-ca", &[("ca.crt", ca)]).await?;
    let exposed = hosted.cluster.expose_at(HTTPS, fake.address()).await?;
    let host = exposed.address().ip().to_string();
    let mut names = Vec::new();
    for (index, kms) in states.iter().enumerate() {
        let deployment = described(hosted, scratch, vendor, kms, &host).await;
        let deployment = deployment.with_context(|| format!("state {index}"))?;
        hosted.roll_out_as(&deployment).await?;
        hosted.wait_usable().await?;
        let name = format!("load-{index}");
        let client = hosted.service()?;
        client.create(Kind::Secret, "default", &name, &[("word", &name)]).await?;
        names.push(name);
        for name in &names {
            let data = client.read(Kind::Secret, "default", name).await?;
            ensure!(data["word"] == *name, "{BROKEN}{name} holds {data:?}");
        }
    }
    let mut written = Vec::new();
    for entry in hosted.stored(Kind::Secret, "default").await? {
        let stored = Stored::parse(&entry.value)?;
        let annotation = stored.object.annotations.get("version.azure.akv.io");
        written.push(Written {
            provider: stored.provider,
            key_id: stored.object.key_id,
            marked: annotation.map(|text| String::from_utf8_lossy(text).into_owned()),
        });
    }
    ensure!(written.len() == names.len(), "{written:?}");
    Ok(written)
}

/// The Deployment with the sidecars of a HostedCluster; what is rendered for it is applied.
async fn described(
    hosted: &Hosted,
    scratch: &Scratch,
    vendor: &Vendor<'_>,
    kms: &Value,
    host: &str,
) -> Result<Value> {
    let dir = scratch.subdir("described")?;
    let at = |name: &str| dir.join(name).display().to_string();
    let cluster = json!({
        "apiVersion": "hypershift.openshift.io/v1beta1", "kind": "HostedCluster",
        "metadata": {"name": "demo", "namespace": "clusters"},
        "spec": {
            "platform": {"azure": {"tenantID": TENANT}},
            "secretEncryption": {"type": "kms", "kms": kms},
        },
    });
    std::fs::write(at("hostedcluster"), cluster.to_string())?;
    std::fs::create_dir_all(at("refs/ibm-kms"))?;
    std::fs::write(at("refs/ibm-kms/iam_apikey"), "it is mounted")?;
    let (file, refs, out) = (at("hostedcluster"), at("refs"), at("out"));
    let profile = ["--profile", "hypershift"];
    let render = ["render", "-f", &file, "--from-dir", &refs, "--to-dir", &out];
    binaries::run("sidekey", &[&render[..], &profile].concat()).await?.ok()?;
    for object in std::fs::read_dir(&out)? {
        let object = object?;
        let mut data = Vec::new();
        for entry in std::fs::read_dir(object.path())? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            data.push((name, std::fs::read_to_string(entry.path())?));
        }
        let data: Vec<_> = data.iter().map(|(name, text)| (name.as_str(), text.clone())).collect();
        hosted.put_secret(&object.file_name().to_string_lossy(), &data).await?;
    }

    let mut plain = hosted.bare_alone();
    if vendor.sockets_in_tmp {
        let mounts = plain.pointer_mut("/spec/template/spec/containers/0/volumeMounts");
        let mounts = mounts.and_then(Value::as_array_mut).context("no mounts")?;
        mounts.retain(|mount| mount["mountPath"] != "/tmp");
    }
    std::fs::write(at("plain"), format!("{plain:#}\n"))?;
    let (from, to) = (at("plain"), at("injected"));
    let image = format!("{}={}", vendor.name, vendor.image);
    let inject = ["inject", "-f", &from, "--to", &to, "--encryption", &file, "--image", &image];
    binaries::run("sidekey", &[&inject[..], &profile].concat()).await?.ok()?;
    let mut deployment: Value = serde_json::from_str(&std::fs::read_to_string(&to)?)?;
    let template = &mut deployment["spec"]["template"];
    template["metadata"]["annotations"]["e2e/described"] = kms.to_string().into();
    let spec = &mut template["spec"];
    spec["hostAliases"] = json!([{"ip": host, "hostnames": vendor.hosts}]);
    let volumes = spec["volumes"].as_array_mut().context("no volumes")?;
    volumes.push(json!({"name": "vendor-ca", "secret": {"secretName": "vendor-ca"}}));
    if let Some((name, secret)) = vendor.token {
        let volume = volumes.iter_mut().find(|volume| volume["name"] == name);
        *volume.context("no volume for the token")? =
            json!({"name": name, "secret": {"secretName": secret}});
    }
    let containers = spec["containers"].as_array_mut().context("no containers")?;
    let sidecars = containers.iter_mut().filter(|container| container["image"] == vendor.image);
    let mut count = 0;
    for sidecar in sidecars {
        count += 1;
        let ca = json!({"name": "vendor-ca", "mountPath": "/vendor-ca", "readOnly": true});
        sidecar["volumeMounts"].as_array_mut().context("no mounts")?.push(ca);
        let variable = json!({"name": "SSL_CERT_FILE", "value": "/vendor-ca/ca.crt"});
        sidecar["env"].as_array_mut().context("no environment")?.push(variable);
        sidecar["imagePullPolicy"] = "Never".into();
    }
    ensure!(count > 0, "no sidecar was put in");
    Ok(deployment)
}

async fn image(hosted: &Hosted, scratch: &Scratch, folder: &str) -> Result<String> {
    let images = images::ready(&[folder], scratch.path()).await?;
    let image = images.first().context("no image was built")?;
    hosted.cluster.load_image(&image.archive).await?;
    Ok(image.reference.clone())
}
