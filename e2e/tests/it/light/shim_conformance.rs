//! Promise: towards kube-apiserver the shim is a KMS v2 plugin like any other, judged by the same
//! suite as every provider, with a real provider behind it.

use std::process::Command;
use std::sync::Arc;

use sidekey_conformance::{Hook, Launched, assert_conforms};
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
