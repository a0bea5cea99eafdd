//! A plugin that is a process of its own, as in the tests of every provider.

use std::path::Path;
use std::process::Command;

use sidekey_conformance::{Hook, LaunchError, Launched, Options, Verdict, assert_conforms, run};
use sidekey_core::Endpoint;

use crate::plugin::{Store, TestPlugin, bind, serve};

/// Where the plugin process finds its directory.
const DIR: &str = "CONFORMANCE_TEST_PLUGIN";

/// This program again, as a plugin with socket and keys in `dir`: the one test that it is told
/// to run serves instead of testing when it finds the directory in its environment.
pub(crate) fn plugin_process(dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = "launched::a_launched_plugin_ends_with_its_last_handle";
    command.args(["--exact", name, "--nocapture"]).env(DIR, dir);
    command
}

async fn serve_in(dir: &Path) {
    println!("serving in {}", dir.display());
    serve(bind(&dir.join("kms.sock"), None), Store::open(dir.join("keys"))).await;
}

fn endpoint(dir: &Path) -> Endpoint {
    Endpoint::Path(dir.join("kms.sock"))
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

#[tokio::test]
async fn a_launched_plugin_is_restarted_rotated_and_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let launched = Launched::start(plugin_process(dir.path()), endpoint(dir.path())).await.unwrap();
    let first = launched.pid();
    let store = Store::open(dir.path().join("keys"));
    let rotate = Hook::new(move || {
        store.rotate();
        std::future::ready(Ok::<_, String>(()))
    });
    let plugin = launched.plugin().with_rotate(rotate).without_backend();
    assert_conforms(&plugin).await;
    assert_ne!(launched.pid(), first, "the restart checks must have restarted it");
    assert!(launched.log().matches("serving in").count() >= 3, "{}", launched.log());
}

#[tokio::test]
async fn a_launched_plugin_ends_with_its_last_handle() {
    if let Some(dir) = std::env::var_os(DIR) {
        return serve_in(Path::new(&dir)).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let launched = Launched::start(plugin_process(dir.path()), endpoint(dir.path())).await.unwrap();
    launched.restart().await.unwrap();
    let plugin = launched.plugin();
    let process = Path::new("/proc").join(launched.pid().to_string());
    drop(launched);
    assert!(process.exists(), "the plugin's hook still holds it");
    drop(plugin);
    assert!(!process.exists());
}

#[tokio::test]
async fn a_plugin_that_ends_early_shows_what_it_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let command = shell("echo there is no key file >&2; exit 3");
    let error = Launched::start(command, endpoint(dir.path())).await.unwrap_err();
    let LaunchError::Ended { status, log, .. } = &error else { panic!("{error}") };
    assert_eq!(status.code(), Some(3));
    assert!(log.contains("there is no key file"), "{error}");
}

#[tokio::test]
async fn a_missing_program_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let command = Command::new(dir.path().join("no-such-plugin"));
    let error = Launched::start(command, endpoint(dir.path())).await.unwrap_err();
    assert!(matches!(error, LaunchError::Spawn { .. }), "{error}");
    assert!(error.to_string().contains("no-such-plugin"), "{error}");
}

#[tokio::test]
async fn assert_conforms_panics_with_the_table_if_something_was_not_judged() {
    let judged = tokio::spawn(async {
        let plugin = TestPlugin::start(None);
        assert_conforms(&plugin.bare()).await;
    });
    let panic = judged.await.unwrap_err().into_panic();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(message.contains("rotation.encrypt") && message.contains("NOT RUN"), "{message}");
    assert!(message.contains("launched.rs"), "the caller must be named: {message}");
}

#[tokio::test]
async fn a_failed_hook_is_told_and_fails_its_check() {
    let plugin = TestPlugin::start(None);
    let judged = plugin.bare().with_rotate(Hook::command(shell("echo sealed >&2; exit 2")));
    let report = run(&judged, &Options::default()).await;
    let finding = report.checks.iter().find(|finding| finding.id == "rotation.key-id-moves");
    let finding = finding.unwrap();
    assert_eq!(finding.verdict, Verdict::Failed, "\n{report}");
    assert!(finding.detail.contains("sealed"), "\n{report}");
}
