//! Killed, taken up, killed.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use sidekey_e2e::{Kind, Load, LoadOptions, binaries};

use super::world::World;

/// How often it is killed.
const KILLS: usize = 5;

pub(super) async fn killed_again_and_again_it_leaves_nothing_out_and_load_does_not_notice(
    world: &mut World,
) {
    world.create(Kind::Secret, "default", "many", 400).await;
    let rest = Duration::from_millis(50);
    let options = LoadOptions { rest, ..LoadOptions::default() };
    let load = Load::start(vec![world.client.clone()], options).unwrap();
    load.more(60).await.unwrap();
    world.promote().await;
    let target = format!("key-{}", world.key);

    let program = binaries::path_async("sidekey").await.unwrap();
    let mut seen = String::new();
    for _ in 0..KILLS {
        let mut child = tokio::process::Command::new(&program)
            .args(world.arguments())
            // Slow enough for all the kills.
            .args(["--rate", "10", "--target", &target])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        seen = world.wait_checkpoint(&seen).await;
        assert!(child.try_wait().unwrap().is_none(), "it has ended before it was killed");
        child.kill().await.unwrap();
    }
    let left = world.keys().await.get(&(world.key - 1)).copied();
    assert!(left.is_some(), "there was something left to do");
    load.more(60).await.unwrap();

    let done = world.migrate(&["--target", &target]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    let answer: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(answer["complete"], true, "{answer}");
    assert!(!world.checkpoint().exists(), "what is done needs no checkpoint");
    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout {KILLS} kills {report}");
    world.all_is_new().await;
    report.all_reads(&world.client, "default").await.unwrap();
}
