#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use super::*;

/// Far beyond any test, so that only inotify can have found what is told.
const NEVER: Duration = Duration::from_secs(24 * 3600);

/// The shortest poll there is.
const SETTLED: Duration = Duration::from_millis(100);

fn set(paths: &[&Path]) -> BTreeSet<PathBuf> {
    paths.iter().map(|path| path.to_path_buf()).collect()
}

async fn told(subscription: &mut Subscription) -> Result<Files, Error> {
    timeout(Duration::from_secs(30), subscription.changed()).await.expect("no change was told")
}

/// Makes `change` when the subscription already waits, so that the change must
/// wake it: the first future of a `join!` is polled first.
async fn upon(subscription: &mut Subscription, change: impl FnOnce()) -> Result<Files, Error> {
    tokio::join!(told(subscription), async { change() }).0
}

fn text<'a>(files: &'a Files, path: &Path) -> &'a str {
    files.secret(path).unwrap().as_text().unwrap()
}

/// A directory as kubelet makes it: `name -> ..data/name`, `..data -> ..<version>`.
fn publish(dir: &Path, version: &str, files: &[(&str, &str)]) {
    let real = dir.join(format!("..{version}"));
    fs::create_dir(&real).unwrap();
    for (name, content) in files {
        fs::write(real.join(name), content).unwrap();
        let link = dir.join(name);
        if link.symlink_metadata().is_err() {
            symlink(Path::new("..data").join(name), link).unwrap();
        }
    }
    let old = fs::read_link(dir.join("..data")).ok();
    symlink(format!("..{version}"), dir.join("..data_tmp")).unwrap();
    fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
    if let Some(old) = old {
        fs::remove_dir_all(dir.join(old)).unwrap();
    }
}

#[test]
fn every_unusable_file_is_named_with_its_reason() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    let paths = ["missing", "empty", "blank", "large", "dir", "fifo", "good"].map(at);
    fs::write(at("empty"), "").unwrap();
    fs::write(at("blank"), " \n").unwrap();
    fs::write(at("large"), vec![b'x'; MAX_SIZE as usize + 1]).unwrap();
    fs::create_dir(at("dir")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), 0o600.into()).unwrap();
    fs::write(at("good"), "s3cret").unwrap();

    let error = Files::read(paths.iter().map(PathBuf::as_path)).unwrap_err();
    assert_eq!(error.kind(), Kind::Config);
    let report = error.report();
    for expected in [
        "missing\" does not exist",
        "empty\" is empty",
        "blank\" is empty",
        "large\" is larger than 1 MiB",
        "dir\" is a directory",
        "fifo\" is not a regular file",
        "check the path and the mount",
    ] {
        assert!(report.contains(expected), "{expected:?} is not in {report}");
    }
    assert!(!report.contains("good"), "{report}");
    assert!(!report.contains("s3cret"), "{report}");
}

#[test]
fn files_of_just_the_largest_size_are_read() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("large");
    fs::write(&path, vec![b'x'; MAX_SIZE as usize]).unwrap();
    let files = Files::read([path.as_path()]).unwrap();
    assert_eq!(files.secret(&path).unwrap().expose().len() as u64, MAX_SIZE);
}

#[test]
fn files_that_hide_their_size_are_read_whole() {
    let path = Path::new("/proc/self/mountinfo");
    assert_eq!(fs::metadata(path).unwrap().len(), 0);
    let expected = fs::read(path).unwrap();
    assert_eq!(read_file(path).unwrap().expose(), expected);
}

#[test]
fn undeclared_files_are_an_error_and_contents_are_not_printed() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("token");
    fs::write(&path, "hunter2").unwrap();
    let files = Files::read([path.as_path()]).unwrap();
    assert_eq!(text(&files, &path), "hunter2");
    assert_eq!(files.secret(Path::new("/other")).unwrap_err().kind(), Kind::Bug);
    let debug = format!("{files:?} {:?}", files.digest());
    assert!(debug.contains("token") && !debug.contains("hunter2"), "{debug}");
}

#[test]
fn digest_depends_on_path_and_content_alone() {
    let dir = TempDir::new().unwrap();
    let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
    let digest = |x: &str, y: &str| {
        fs::write(&a, x).unwrap();
        fs::write(&b, y).unwrap();
        Files::read([a.as_path(), b.as_path()]).unwrap().digest()
    };
    let first = digest("xy", "z");
    assert_eq!(digest("xy", "z"), first);
    assert_ne!(digest("x", "yz"), first);
    assert_ne!(digest("z", "xy"), first);
    assert_eq!(Files::read([b.as_path(), a.as_path()]).unwrap().digest(), digest("z", "xy"));
}

#[test]
fn a_swap_in_the_middle_of_reading_is_read_again() {
    let dir = TempDir::new().unwrap();
    let [cert, key] = ["cert", "key"].map(|name| dir.path().join(name));
    publish(dir.path(), "1", &[("cert", "cert 1"), ("key", "key 1")]);
    let mut swaps = 0;
    let state = State::with(&[&cert, &key], |path| {
        let found = read_file(path);
        if path == cert && swaps < 2 {
            swaps += 1;
            let [cert, key] = ["cert", "key"].map(|name| format!("{name} {}", swaps + 1));
            publish(dir.path(), &format!("{}", swaps + 1), &[("cert", &cert), ("key", &key)]);
        }
        found
    });
    let files = state.result.unwrap();
    assert_eq!((text(&files, &cert), text(&files, &key)), ("cert 3", "key 3"));
}

#[test]
fn a_file_that_never_rests_is_an_error_that_names_it_alone() {
    let dir = TempDir::new().unwrap();
    let [calm, wild] = ["calm", "wild"].map(|name| dir.path().join(name));
    fs::write(&calm, "calm").unwrap();
    fs::write(&wild, "x").unwrap();
    let mut size = 1;
    let state = State::with(&[&calm, &wild], |path| {
        size += 1;
        fs::write(&wild, "x".repeat(size)).unwrap();
        read_file(path)
    });
    let report = state.result.unwrap_err().report();
    assert!(report.contains("wild\" keeps changing") && !report.contains("calm\""), "{report}");
}

proptest! {
    #[test]
    fn no_name_makes_reading_panic(names in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..4)) {
        let dir = TempDir::new().unwrap();
        let paths: Vec<PathBuf> = names
            .into_iter()
            .enumerate()
            .map(|(n, name)| if n % 2 == 0 { dir.path().join(OsString::from_vec(name)) } else { OsString::from_vec(name).into() })
            .collect();
        let _ = Files::read(paths.iter().map(PathBuf::as_path));
        let mut subscription = Watcher::new(NEVER).subscribe(paths.into_iter().collect());
        let _ = subscription.read();
    }
}

#[tokio::test]
async fn first_state_is_told_at_once_and_no_state_twice() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("token");
    let mut subscription = Watcher::new(NEVER).subscribe(set(&[&path]));
    assert!(told(&mut subscription).await.unwrap_err().report().contains("does not exist"));
    let files = upon(&mut subscription, || fs::write(&path, "one").unwrap()).await.unwrap();
    assert_eq!(text(&files, &path), "one");
    // Rewritten without a change: the next thing told must be the next content.
    let (files, ()) = tokio::join!(told(&mut subscription), async {
        fs::write(&path, "one").unwrap();
        sleep(Duration::from_millis(300)).await;
        fs::write(&path, "two").unwrap();
    });
    assert_eq!(text(&files.unwrap(), &path), "two");
}

#[tokio::test(start_paused = true)]
async fn what_the_caller_knows_is_not_told_again() {
    let dir = TempDir::new().unwrap();
    let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
    fs::write(&a, "a").unwrap();
    fs::write(&b, "b").unwrap();
    let known = Files::read([a.as_path()]).unwrap();
    let mut subscription = Watcher::polling(NEVER).subscribe(set(&[&a]));
    subscription.told(known.digest());
    assert!(timeout(NEVER * 3, subscription.changed()).await.is_err());
    // Nor after the caller has read it by itself.
    fs::write(&a, "a2").unwrap();
    assert_eq!(text(&subscription.read().unwrap(), &a), "a2");
    assert!(timeout(NEVER * 3, subscription.changed()).await.is_err());
    // The same set again is nothing new; another one is.
    subscription.replace(set(&[&a]));
    assert!(timeout(NEVER * 3, subscription.changed()).await.is_err());
    subscription.replace(set(&[&a, &b]));
    assert_eq!(subscription.paths().len(), 2);
    assert_eq!(text(&subscription.changed().await.unwrap(), &b), "b");
}

#[tokio::test]
async fn kubelet_swap_is_told_as_one_state() {
    let dir = TempDir::new().unwrap();
    let [cert, key] = ["cert", "key"].map(|name| dir.path().join(name));
    publish(dir.path(), "2026_01", &[("cert", "cert 1"), ("key", "key 1")]);
    let mut subscription = Watcher::new(NEVER).subscribe(set(&[&cert, &key]));
    told(&mut subscription).await.unwrap();
    for n in 2..4 {
        let [c, k] = ["cert", "key"].map(|name| format!("{name} {n}"));
        let swap = || publish(dir.path(), &format!("2026_0{n}"), &[("cert", &c), ("key", &k)]);
        let files = upon(&mut subscription, swap).await.unwrap();
        assert_eq!((text(&files, &cert), text(&files, &key)), (c.as_str(), k.as_str()));
    }
}

#[tokio::test]
async fn rename_over_is_told() {
    let dir = TempDir::new().unwrap();
    let [path, new] = ["token", "token.new"].map(|name| dir.path().join(name));
    fs::write(&path, "one").unwrap();
    let mut subscription = Watcher::new(NEVER).subscribe(set(&[&path]));
    told(&mut subscription).await.unwrap();
    fs::write(&new, "two").unwrap();
    let rename = || fs::rename(&new, &path).unwrap();
    assert_eq!(text(&upon(&mut subscription, rename).await.unwrap(), &path), "two");
}

#[tokio::test]
async fn rewrite_in_place_is_told() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("token");
    fs::write(&path, "one").unwrap();
    let mut subscription = Watcher::new(NEVER).subscribe(set(&[&path]));
    told(&mut subscription).await.unwrap();
    let rewrite = || fs::write(&path, "two").unwrap();
    assert_eq!(text(&upon(&mut subscription, rewrite).await.unwrap(), &path), "two");
}

// The clock of the next two tests stands still but when everybody waits, so that
// their order of events is the same on any machine.
#[tokio::test(start_paused = true)]
async fn a_file_empty_or_half_written_for_a_moment_is_not_told() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("token");
    fs::write(&path, "one").unwrap();
    let mut subscription = Watcher::polling(SETTLED).subscribe(set(&[&path]));
    told(&mut subscription).await.unwrap();
    let (files, ()) = tokio::join!(told(&mut subscription), async {
        fs::write(&path, "").unwrap();
        sleep(Duration::from_millis(750)).await;
        fs::write(&path, "tw").unwrap();
        sleep(Duration::from_millis(80)).await;
        fs::write(&path, "two").unwrap();
    });
    assert_eq!(text(&files.unwrap(), &path), "two");
}

#[tokio::test(start_paused = true)]
async fn a_file_that_stays_empty_is_told_once() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("token");
    fs::write(&path, "one").unwrap();
    let mut subscription = Watcher::polling(SETTLED).subscribe(set(&[&path]));
    told(&mut subscription).await.unwrap();
    fs::write(&path, "").unwrap();
    assert!(told(&mut subscription).await.unwrap_err().report().contains("is empty"));
    assert!(timeout(SETTLED * 1000, subscription.changed()).await.is_err());
    fs::write(&path, "two").unwrap();
    assert_eq!(text(&told(&mut subscription).await.unwrap(), &path), "two");
}

#[tokio::test(start_paused = true)]
async fn content_that_never_settles_is_told_all_the_same() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("token");
    fs::write(&path, "0").unwrap();
    let mut subscription = Watcher::polling(SETTLED).subscribe(set(&[&path]));
    told(&mut subscription).await.unwrap();
    let restless = async {
        for n in 1.. {
            fs::write(&path, format!("{n}")).unwrap();
            sleep(SETTLED / 2).await;
        }
    };
    tokio::select! {
        files = told(&mut subscription) => assert_ne!(text(&files.unwrap(), &path), "0"),
        () = restless => unreachable!(),
    }
}

#[tokio::test]
async fn removal_and_return_are_told() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("token");
    fs::write(&path, "one").unwrap();
    let mut subscription = Watcher::new(NEVER).subscribe(set(&[&path]));
    told(&mut subscription).await.unwrap();
    let error = upon(&mut subscription, || fs::remove_file(&path).unwrap()).await.unwrap_err();
    assert!(error.report().contains("does not exist"));
    let rewrite = || fs::write(&path, "one").unwrap();
    assert_eq!(text(&upon(&mut subscription, rewrite).await.unwrap(), &path), "one");
}

#[tokio::test(start_paused = true)]
async fn poll_alone_finds_a_change_of_neither_size_nor_time() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("token");
    fs::write(&path, "one").unwrap();
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let mut subscription = Watcher::polling(Duration::from_secs(10)).subscribe(set(&[&path]));
    told(&mut subscription).await.unwrap();
    fs::write(&path, "two").unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
    assert_eq!(text(&told(&mut subscription).await.unwrap(), &path), "two");
}

#[tokio::test]
async fn a_directory_that_comes_late_is_noticed() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a/b/token");
    let mut subscription = Watcher::new(NEVER).subscribe(set(&[&path]));
    told(&mut subscription).await.unwrap_err();
    let (files, ()) = tokio::join!(told(&mut subscription), async {
        // Each step after the watcher has seen the one before.
        fs::create_dir(dir.path().join("a")).unwrap();
        sleep(Duration::from_millis(300)).await;
        fs::create_dir(dir.path().join("a/b")).unwrap();
        sleep(Duration::from_millis(300)).await;
        fs::write(&path, "one").unwrap();
    });
    assert_eq!(text(&files.unwrap(), &path), "one");
}

#[tokio::test]
async fn a_replaced_directory_is_followed() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("live")).unwrap();
    fs::write(at("live/token"), "one").unwrap();
    let watcher = Watcher::new(NEVER);
    let mut subscription = watcher.subscribe(set(&[&at("live/token")]));
    told(&mut subscription).await.unwrap();
    fs::create_dir(at("next")).unwrap();
    fs::write(at("next/token"), "two").unwrap();
    let swap = || {
        fs::rename(at("live"), at("old")).unwrap();
        fs::rename(at("next"), at("live")).unwrap();
    };
    assert_eq!(text(&upon(&mut subscription, swap).await.unwrap(), &at("live/token")), "two");
    let rewrite = || fs::write(at("live/token"), "three").unwrap();
    assert_eq!(text(&upon(&mut subscription, rewrite).await.unwrap(), &at("live/token")), "three");
    assert_eq!(watcher.watched(), 1, "the old directory is still watched");
}

#[tokio::test]
async fn the_target_of_a_link_elsewhere_is_watched() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("links")).unwrap();
    fs::create_dir(at("real")).unwrap();
    fs::write(at("real/token"), "one").unwrap();
    fs::write(at("real/other"), "three").unwrap();
    symlink(at("real/token"), at("links/token")).unwrap();
    let mut subscription = Watcher::new(NEVER).subscribe(set(&[&at("links/token")]));
    told(&mut subscription).await.unwrap();
    let rewrite = || fs::write(at("real/token"), "two").unwrap();
    assert_eq!(text(&upon(&mut subscription, rewrite).await.unwrap(), &at("links/token")), "two");
    symlink("../real/other", at("links/new")).unwrap();
    let turn = || fs::rename(at("links/new"), at("links/token")).unwrap();
    assert_eq!(text(&upon(&mut subscription, turn).await.unwrap(), &at("links/token")), "three");
}

#[tokio::test]
async fn two_readers_of_one_directory_are_both_told() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("token");
    fs::write(&path, "one").unwrap();
    let watcher = Watcher::new(NEVER);
    let mut first = watcher.subscribe(set(&[&path]));
    let mut second = watcher.subscribe(set(&[&path]));
    // Subscriptions outlive the watcher that made them.
    drop(watcher);
    told(&mut first).await.unwrap();
    told(&mut second).await.unwrap();
    let (a, b, ()) = tokio::join!(told(&mut first), told(&mut second), async {
        fs::write(&path, "two").unwrap();
    });
    assert_eq!((text(&a.unwrap(), &path), text(&b.unwrap(), &path)), ("two", "two"));
    // Also when just one of them is there to read the events.
    let rewrite = || fs::write(&path, "three").unwrap();
    assert_eq!(text(&upon(&mut first, rewrite).await.unwrap(), &path), "three");
    assert_eq!(text(&told(&mut second).await.unwrap(), &path), "three");
}

#[tokio::test]
async fn a_dropped_subscription_leaves_no_watch_behind() {
    let dir = TempDir::new().unwrap();
    let [path, elsewhere] = ["token", "sub/token"].map(|name| dir.path().join(name));
    fs::create_dir(dir.path().join("sub")).unwrap();
    fs::write(&path, "one").unwrap();
    fs::write(&elsewhere, "one").unwrap();
    let watcher = Watcher::new(NEVER);
    let mut first = watcher.subscribe(set(&[&path, &elsewhere]));
    let mut second = watcher.subscribe(set(&[&path]));
    told(&mut first).await.unwrap();
    told(&mut second).await.unwrap();
    assert_eq!(watcher.watched(), 2);
    assert_eq!(kernel_watches(dir.path()).len(), 1);
    drop(first);
    assert_eq!(watcher.watched(), 1);
    let rewrite = || fs::write(&path, "two").unwrap();
    assert_eq!(text(&upon(&mut second, rewrite).await.unwrap(), &path), "two");
    drop(second);
    assert_eq!(watcher.watched(), 0);
    let kept = kernel_watches(dir.path());
    assert!(kept.is_empty(), "the kernel still watches: {kept:?}");
}

/// The lines of `/proc/self/fdinfo` that speak of watches on `dir`.
fn kernel_watches(dir: &Path) -> Vec<String> {
    let inode = format!("ino:{:x} ", fs::metadata(dir).unwrap().ino());
    fs::read_dir("/proc/self/fdinfo")
        .unwrap()
        .filter_map(|entry| fs::read_to_string(entry.unwrap().path()).ok())
        .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
        .filter(|line| line.starts_with("inotify") && line.contains(&inode))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_was_given_up_loses_nothing() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("token");
    fs::write(&path, "one").unwrap();
    let mut subscription = Watcher::polling(SETTLED).subscribe(set(&[&path]));
    told(&mut subscription).await.unwrap();
    fs::write(&path, "two").unwrap();
    // Given up while the change settles.
    assert!(timeout(SETTLED / 2, subscription.changed()).await.is_err());
    assert_eq!(text(&told(&mut subscription).await.unwrap(), &path), "two");
}
