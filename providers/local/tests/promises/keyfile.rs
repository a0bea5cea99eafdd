//! A key file is never lost, damaged or made anew.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::support::{Home, Process, binary, complaint, json, until};

/// A sound file but for one digit of a key.
fn altered(sound: &str) -> String {
    let (head, tail) = sound.split_once("\"key\": \"").unwrap();
    let digit = if tail.starts_with('A') { "B" } else { "A" };
    format!("{head}\"key\": \"{digit}{}", &tail[1..])
}

#[tokio::test]
async fn a_damaged_or_empty_file_is_a_clear_error_and_never_made_anew() {
    let home = Home::new();
    home.make_key("sound");
    let sound = std::fs::read_to_string(home.path("sound")).unwrap();
    let cut = sound[..sound.len() / 2].to_owned();
    let newer = sound.replace("sidekey-local/1", "sidekey-local/2");
    let cases = [
        (String::new(), "is empty"),
        (cut, "is damaged"),
        (altered(&sound), "checksum"),
        (newer, "unknown format"),
        ("not a key\n".to_owned(), "is damaged"),
    ];
    for (content, why) in &cases {
        home.write("key", content);
        for command in ["rotate", "activate", "show"] {
            let failed = home.on_key(&[command, "-o", "json"]);
            assert_eq!(failed.status.code(), Some(1), "{command}: {failed:?}");
            let said = json(&failed)["error"].to_string();
            assert!(said.contains(why) && said.contains("key"), "{command}: {said}");
        }
        assert_eq!(home.on_key(&["create"]).status.code(), Some(1), "there is a file, but no key");
        assert_eq!(&std::fs::read_to_string(home.path("key")).unwrap(), content);
    }
    for (content, why) in cases {
        home.write("key", &content);
        let process = Process::start(&home.flags());
        until(why, async || {
            let ready = process.get("/readyz").await;
            (ready.code == 503 && ready.body.contains(why)).then_some(())
        })
        .await;
        let status = home.kms("kms.sock").await.status().await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::FailedPrecondition);
        assert!(status.message().contains(why), "{status:?}");
        assert_eq!(std::fs::read_to_string(home.path("key")).unwrap(), content);
        // Once it is mended, no restart is needed.
        home.write("restored", &sound);
        std::fs::rename(home.path("restored"), home.path("key")).unwrap();
        home.healthy("kms.sock").await;
        process.stop().await;
    }
}

#[tokio::test]
async fn a_missing_file_is_a_clear_error_and_made_only_on_request() {
    let home = Home::new();
    for command in ["rotate", "activate", "show"] {
        let failed = home.on_key(&[command]);
        assert_eq!(failed.status.code(), Some(1), "{failed:?}");
        assert!(complaint(&failed).contains(&home.at("key")), "{}", complaint(&failed));
    }
    let flags: Vec<_> = home.flags().into_iter().filter(|flag| flag != "--create-key").collect();
    let process = Process::start(&flags);
    until("the reason", async || {
        process.get("/readyz").await.body.contains("does not exist").then_some(())
    })
    .await;
    assert!(!home.path("key").exists());
    assert!(!process.log().contains("last good"), "there is none yet:\n{}", process.log());
    home.make_key("elsewhere");
    std::fs::rename(home.path("elsewhere"), home.path("key")).unwrap();
    home.healthy("kms.sock").await;
    process.stop().await;
}

#[tokio::test]
async fn a_write_that_fails_during_rotate_leaves_the_key_as_it_was() {
    let home = Home::new();
    let process = home.serve(&[]).await;
    let before = std::fs::read(home.path("key")).unwrap();
    let full = |blocks: &str| {
        // Without the signal the write fails with an error, as on a full disk.
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).arg(env!("CARGO_BIN_EXE_sidekey-local"));
        shell.args(["rotate", "--activate", "--key-file"]).arg(home.path("key"));
        shell.output().unwrap()
    };
    let failed = full("0");
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    assert!(complaint(&failed).contains("as it was"), "{}", complaint(&failed));
    assert_eq!(std::fs::read(home.path("key")).unwrap(), before);
    assert_eq!(home.names(), ["key", "kms.sock"], "nothing half-written is left");
    home.kms("kms.sock").await.encrypt().await.unwrap();
    let done = full("unlimited");
    assert!(done.status.success(), "{done:?}");
    process.stop().await;
}

#[tokio::test]
async fn a_rotation_killed_at_any_moment_damages_nothing() {
    let home = Home::new();
    let process = home.serve(&[]).await;
    let sealed = home.kms("kms.sock").await.encrypt().await.unwrap();
    let rotate = || {
        let mut command = binary();
        command.args(["rotate", "--activate", "--key-file"]).arg(home.path("key"));
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let versions = || -> BTreeSet<u64> {
        let shown = json(&home.on_key(&["show", "-o", "json"]));
        shown["versions"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap()).collect()
    };
    // Spread over the time that a whole one takes, so that some die at each stage.
    let began = Instant::now();
    assert!(rotate().wait().unwrap().success());
    let whole = began.elapsed();
    let (mut known, mut killed) = (versions(), 0);
    for part in 0..50_u32 {
        let mut child = rotate();
        tokio::time::sleep(whole * part / 50).await;
        child.kill().unwrap();
        killed += u32::from(!child.wait().unwrap().success());
        let now = versions();
        assert!(now.is_superset(&known), "{known:?} became {now:?}");
        known = now;
    }
    assert!(killed > 0, "none was killed in time");
    assert!(rotate().wait().unwrap().success());
    assert_eq!(home.names(), ["key", "kms.sock"], "what the killed left has been cleared away");
    home.kms("kms.sock").await.decrypt(&sealed).await.unwrap();
    process.stop().await;
}

#[test]
fn rotations_at_the_same_time_lose_no_version() {
    let home = Home::new();
    home.make_key("key");
    let children: Vec<_> = (0..12)
        .map(|_| {
            let mut command = binary();
            command.args(["rotate", "--key-file"]).arg(home.path("key")).stdout(Stdio::null());
            command.spawn().unwrap()
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let shown = json(&home.on_key(&["show", "-o", "json"]));
    assert_eq!(shown["versions"].as_array().unwrap().len(), 13);
}

#[test]
fn many_who_create_at_the_same_time_make_one_key() {
    let home = Home::new();
    let key = home.at("key");
    let create = || binary().args(["create", "-o", "json", "--key-file", &key]).output().unwrap();
    let lineages: BTreeSet<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(create)).collect();
        let outputs = threads.into_iter().map(|thread| thread.join().unwrap());
        outputs.map(|output| json(&output)["lineage"].to_string()).collect()
    });
    assert_eq!(lineages.len(), 1);
    assert_eq!(home.names(), ["key"]);
}

#[tokio::test]
async fn a_key_file_open_to_everybody_is_a_warning() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    home.make_key("key");
    assert_eq!(home.path("key").metadata().unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::set_permissions(home.path("key"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let process = home.serve(&[]).await;
    process.logs("open to every user").await;
    process.stop().await;
}
