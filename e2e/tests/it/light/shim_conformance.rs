//! Promise: towards kube-apiserver the shim is a KMS v2 plugin like any other, judged by the same
//! suite as every provider, with a real provider behind it. What was stored through a shim once it
//! reads for ever. And both say which cryptography they have.

use std::process::Command;
use std::sync::Arc;

use serde_json::Value;
use sidekey_conformance::{CorpusKey, Hook, Launched, assert_conforms, assert_reads_corpus};
use sidekey_e2e::shim::{Shim, ShimConfig, ShimKey};
use sidekey_e2e::{LocalPlugin, Scratch, binaries};
use tokio::sync::Mutex;

#[tokio::test(flavor = "multi_thread")]
async fn the_shim_conforms_to_kms_v2() {
    let scratch = Scratch::new("shim-conformance").unwrap();
    let provider = LocalPlugin::start(&scratch, "provider").await.unwrap();
    let (socket, config) = (scratch.path().join("kms.sock"), scratch.path().join("shim.yaml"));
    let document = format!(
        "listen: unix://{}\nprobe: {{interval: 1s, timeout: 5s}}\nkeys:\n- {{id: 1, role: write, endpoints: [\"{}\"]}}\n",
        socket.display(),
        provider.endpoint(),
    );
    std::fs::write(&config, document).unwrap();

    let mut serve = Command::new(binaries::path_async("sidekey-shim").await.unwrap());
    serve.arg("--config").arg(&config);
    let endpoint = format!("unix://{}", socket.display()).parse().unwrap();
    let shim = Launched::start(serve, endpoint).await.unwrap();

    let mut rotate = Command::new(binaries::path_async("sidekey-local").await.unwrap());
    rotate.args(["rotate", "--activate", "--key-file"]).arg(provider.key_file());
    let provider = Arc::new(Mutex::new(provider));
    let plugin = shim.plugin().with_rotate(Hook::command(rotate)).with_backend_calls(move || {
        let provider = provider.clone();
        async move {
            let metrics =
                provider.lock().await.metrics().await.map_err(|error| error.to_string())?;
            Ok::<_, String>(metrics.sum("kms_backend_calls_total", &[]) as u64)
        }
    });
    assert_conforms(&plugin).await;
}

#[tokio::test]
async fn the_shim_reads_what_was_stored_through_one_once() {
    let start = async |key: &CorpusKey| {
        let state: Value = key.state();
        let scratch = Scratch::new("shim-corpus").unwrap();
        let file = scratch.path().join("key");
        std::fs::write(&file, state["keyFile"].to_string()).unwrap();
        let provider = LocalPlugin::with_key_file(&scratch, "provider", &file).await.unwrap();
        let id = state["id"].as_u64().unwrap();
        let written = ShimKey::write(id, provider.endpoint()).with("kek", state["kek"].clone());
        let shim = Shim::start(&scratch, "shim", &ShimConfig::new(1).key(written)).await.unwrap();
        let endpoint = shim.endpoint().parse().unwrap();
        (vec![("shim", endpoint)], (shim, provider, scratch))
    };
    assert_reads_corpus("shim", start).await;
}

#[tokio::test]
async fn shim_and_provider_say_by_a_gauge_whether_they_have_the_fips_module() {
    let scratch = Scratch::new("fips-gauges").unwrap();
    let provider = LocalPlugin::start(&scratch, "provider").await.unwrap();
    let config = ShimConfig::new(1).write(1, provider.endpoint());
    let shim = Shim::start(&scratch, "shim", &config).await.unwrap();
    for (program, gauge, metrics) in [
        ("sidekey-local", "kms_fips_mode", provider.metrics().await.unwrap()),
        ("sidekey-shim", "kms_shim_fips_mode", shim.metrics().await.unwrap()),
    ] {
        let mut version = Command::new(binaries::path_async(program).await.unwrap());
        let version = version.arg("--version").output().unwrap();
        let version = String::from_utf8(version.stdout).unwrap();
        let expected = f64::from(u8::from(version.trim_end().ends_with("-fips")));
        let values: Vec<f64> = metrics.find(gauge, &[]).map(|sample| sample.value).collect();
        assert_eq!(values, [expected], "{version}");
    }
}
