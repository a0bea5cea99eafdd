#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use super::*;
use crate::files::tests::{publish, text};

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
