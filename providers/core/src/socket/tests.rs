#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs::Permissions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;

use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::*;

fn private() -> TempDir {
    let dir = TempDir::new().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o750)).unwrap();
    dir
}

fn at(path: &Path) -> Endpoint {
    path.to_str().unwrap().parse().unwrap()
}

async fn bind(path: &Path) -> Result<Listener, Error> {
    Listener::bind(&at(path), &SocketOptions::default()).await.map(|(listener, _)| listener)
}

/// A socket file without a process, as kill -9 leaves it.
fn abandon(path: &Path) {
    drop(StdListener::bind(path).unwrap());
    // A child that another test is just starting may still hold a copy.
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while std::os::unix::net::UnixStream::connect(path).is_ok() {
        assert!(std::time::Instant::now() < deadline, "{path:?} is still alive");
        std::thread::yield_now();
    }
    assert!(path.symlink_metadata().unwrap().file_type().is_socket());
}

/// Proves that who connects to `endpoint` is accepted by `listener`.
async fn reaches(endpoint: &Endpoint, listener: &Listener) {
    let meet = async { tokio::join!(endpoint.connect(), listener.accept()) };
    let (client, (_server, peer)) =
        timeout(Duration::from_secs(10), meet).await.expect("nobody met");
    client.unwrap();
    assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
    assert_eq!(peer.pid, i32::try_from(std::process::id()).ok());
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn socket_has_the_mode_and_group_asked_for_and_nothing_else_stays() {
    let dir = private();
    let path = dir.path().join("kms.sock");
    let group = rustix::process::getegid().as_raw();
    let options = SocketOptions { mode: 0o620, group: Some(group), ..SocketOptions::default() };
    let (listener, warning) = Listener::bind(&at(&path), &options).await.unwrap();
    assert_eq!(warning, None);
    let meta = path.symlink_metadata().unwrap();
    assert!(meta.file_type().is_socket());
    assert_eq!((meta.mode() & 0o7777, meta.gid()), (0o620, group));
    assert_eq!(names(dir.path()), ["kms.sock"]);
    assert_eq!(listener.endpoint(), &at(&path));
    reaches(&at(&path), &listener).await;
    listener.close();
    assert!(names(dir.path()).is_empty());
}

#[tokio::test]
async fn a_mode_with_more_than_permissions_is_refused() {
    let dir = private();
    let options = SocketOptions { mode: 0o4660, ..SocketOptions::default() };
    let error = Listener::bind(&at(&dir.path().join("s")), &options).await.unwrap_err();
    assert!(error.report().contains("0o4660"), "{}", error.report());
}

#[tokio::test]
async fn a_stale_socket_is_replaced() {
    let dir = private();
    let path = dir.path().join("kms.sock");
    abandon(&path);
    let listener = bind(&path).await.unwrap();
    reaches(&at(&path), &listener).await;
    assert_eq!(names(dir.path()), ["kms.sock"]);
}

#[tokio::test]
async fn a_live_socket_is_refused_by_name_of_its_process_and_left_alone() {
    let dir = private();
    let path = dir.path().join("kms.sock");
    let first = bind(&path).await.unwrap();
    let error = bind(&path).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Config);
    let process = format!("process {} of uid", std::process::id());
    assert!(error.report().contains(&process), "{}", error.report());
    assert!(first.is_reachable());
    // The attempt knocked and left: that connection is accepted first.
    timeout(Duration::from_secs(10), first.accept()).await.unwrap();
    reaches(&at(&path), &first).await;
    assert_eq!(names(dir.path()), ["kms.sock"]);
}

#[tokio::test]
async fn what_is_not_a_socket_is_refused_and_left_alone() {
    let dir = private();
    let [file, link, sub] = ["file", "link", "sub"].map(|name| dir.path().join(name));
    fs::write(&file, "precious").unwrap();
    abandon(&dir.path().join("stale"));
    symlink("stale", &link).unwrap();
    fs::create_dir(&sub).unwrap();
    for (path, what) in [(&file, "a file"), (&link, "a symbolic link"), (&sub, "a directory")] {
        let error = bind(path).await.unwrap_err();
        assert!(error.report().contains(what), "{}", error.report());
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    assert_eq!(names(dir.path()), ["file", "link", "stale", "sub"]);
}

#[test]
fn of_many_who_bind_at_once_just_one_wins_and_is_reachable() {
    for stale in [false, true] {
        let dir = private();
        let path = dir.path().join("kms.sock");
        if stale {
            abandon(&path);
        }
        // Each on a thread and a runtime of its own, as processes would be.
        let start = std::sync::Barrier::new(4);
        let won = std::thread::scope(|scope| {
            let contender = || {
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                start.wait();
                let won = runtime.block_on(bind(&path));
                won.map(|listener| (runtime, listener))
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(contender)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        for error in won.iter().filter_map(|result| result.as_ref().err()) {
            assert!(error.report().contains("answers there"), "{}", error.report());
        }
        let winners: Vec<_> = won.iter().flatten().collect();
        assert_eq!(winners.len(), 1);
        let (runtime, listener) = winners[0];
        runtime.block_on(async {
            // The losers have knocked.
            for _ in 0..3 {
                timeout(Duration::from_secs(10), listener.accept()).await.unwrap();
            }
            reaches(&at(&path), listener).await;
        });
        assert_eq!(names(dir.path()), ["kms.sock"]);
    }
}

#[tokio::test]
async fn a_peer_whose_uid_is_not_listed_is_closed_and_counted() {
    let dir = private();
    let path = dir.path().join("kms.sock");
    let options = SocketOptions { allowed_uids: vec![12345], ..SocketOptions::default() };
    let (listener, _) = Listener::bind(&at(&path), &options).await.unwrap();
    let client = async {
        let mut bytes = Vec::new();
        for _ in 0..3 {
            let mut stream = at(&path).connect().await.unwrap();
            assert_eq!(stream.read_to_end(&mut bytes).await.unwrap(), 0);
        }
    };
    tokio::select! {
        (_, peer) = listener.accept() => panic!("{peer:?} was accepted"),
        done = timeout(Duration::from_secs(10), client) => done.unwrap(),
    }
    assert_eq!(listener.refused.get(), 3);
}

#[tokio::test]
async fn an_abstract_name_is_bound_once_and_free_after_close() {
    let endpoint: Endpoint =
        format!("unix:///@sidekey-test-{}-{}", std::process::id(), line!()).parse().unwrap();
    let options = SocketOptions::default();
    let (first, warning) = Listener::bind(&endpoint, &options).await.unwrap();
    assert!(warning.is_some_and(|text| text.contains("no file mode guards")));
    reaches(&endpoint, &first).await;
    let error = Listener::bind(&endpoint, &options).await.unwrap_err();
    let process = format!("process {} of uid", std::process::id());
    assert!(error.report().contains(&process), "{}", error.report());
    timeout(Duration::from_secs(10), first.accept()).await.unwrap();
    assert!(first.is_reachable());
    first.close();
    let gone = async {
        while endpoint.connect().await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(10), gone).await.expect("still alive");
    let (second, _) = Listener::bind(&endpoint, &options).await.unwrap();
    reaches(&endpoint, &second).await;
}

#[tokio::test]
async fn close_and_drop_leave_the_socket_of_another_process() {
    let dir = private();
    let path = dir.path().join("kms.sock");
    for close in [Listener::close, drop::<Listener>] {
        let ours = bind(&path).await.unwrap();
        assert!(ours.is_reachable());
        fs::remove_file(&path).unwrap();
        let theirs = StdListener::bind(&path).unwrap();
        assert!(!ours.is_reachable());
        close(ours);
        assert_eq!(names(dir.path()), ["kms.sock"]);
        drop(theirs);
        fs::remove_file(&path).unwrap();
    }
}

#[tokio::test]
async fn paths_up_to_the_limit_of_the_kernel_work_and_no_longer() {
    let dir = private();
    // One long directory with a short name in it, and the other way round.
    let room = 107 - dir.path().as_os_str().len();
    let deep = dir.path().join("d".repeat(room - 3));
    fs::create_dir(&deep).unwrap();
    fs::set_permissions(&deep, Permissions::from_mode(0o750)).unwrap();
    for path in [deep.join("s"), dir.path().join("s".repeat(room - 1))] {
        assert_eq!(path.as_os_str().len(), 107);
        for stale in [false, true] {
            if stale {
                abandon(&path);
            }
            let listener = bind(&path).await.unwrap();
            reaches(&at(&path), &listener).await;
            assert_eq!(names(path.parent().unwrap()).iter().filter(|n| n.contains('s')).count(), 1);
        }
    }
    let long = Endpoint::Path(deep.join("ss"));
    let error = Listener::bind(&long, &SocketOptions::default()).await.unwrap_err();
    assert!(error.report().contains("107 bytes"), "{}", error.report());
}

#[tokio::test]
async fn what_a_killed_process_left_is_swept_and_nothing_else() {
    let dir = private();
    let [left, foreign] = [".sidekey-1-0", ".sidekey-notes"].map(|name| dir.path().join(name));
    fs::create_dir(&left).unwrap();
    abandon(&left.join("kms.sock"));
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("file"), "precious").unwrap();
    let _listener = bind(&dir.path().join("kms.sock")).await.unwrap();
    assert_eq!(names(dir.path()), [".sidekey-notes", "kms.sock"]);
    assert_eq!(fs::read_to_string(foreign.join("file")).unwrap(), "precious");
}

#[tokio::test]
async fn a_loose_directory_is_a_warning() {
    let dir = private();
    for (mode, loose) in [(0o700, false), (0o750, false), (0o770, true), (0o755, true)] {
        fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
        let path = dir.path().join("kms.sock");
        let (_, warning) = Listener::bind(&at(&path), &SocketOptions::default()).await.unwrap();
        assert_eq!(warning.is_some(), loose, "{mode:o}: {warning:?}");
        assert!(warning.is_none_or(|text| text.contains(&format!("{mode:04o}"))));
    }
}

/// In a mount namespace of its own, with mounts like kubelet's.
#[test]
fn a_socket_in_an_empty_dir_is_open_to_no_stranger() {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
    let dir = private();
    let volume = dir.path().join("volumes/kubernetes.io~empty-dir/sockets");
    let [disk, memory, host] = ["disk", "memory", "host"].map(|name| dir.path().join(name));
    let below = memory.join("below");
    for path in [&volume, &disk, &memory, &host] {
        fs::create_dir_all(path).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
    }
    // The namespace is that of a thread, and ends with it. Only for open files, which are not
    // unshared here, is the call deprecated.
    #[allow(deprecated)]
    let binding = std::thread::spawn(move || {
        rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNS).expect("run it as root");
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
        mount_bind(&volume, &disk).unwrap();
        mount("tmpfs", &memory, "tmpfs", MountFlags::empty(), c"mode=0777").unwrap();
        fs::create_dir(&below).unwrap();
        fs::set_permissions(&below, Permissions::from_mode(0o777)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        [disk, memory, below, host].map(|path| {
            let (path, options) = (path.join("kms.sock"), SocketOptions::default());
            let (_, warning) = runtime.block_on(Listener::bind(&at(&path), &options)).unwrap();
            warning.is_some()
        })
    });
    assert_eq!(binding.join().unwrap(), [false, false, true, true], "loose: below, and a host's");
}

#[tokio::test]
async fn a_missing_directory_is_an_error_that_says_how_to_make_it() {
    let dir = private();
    let parent = dir.path().join("run");
    let report = bind(&parent.join("kms.sock")).await.unwrap_err().report();
    assert!(report.contains(&format!("mkdir -p -m 0750 {}", parent.display())), "{report}");
    assert!(!parent.exists());
}

#[tokio::test]
async fn a_directory_that_cannot_be_written_is_an_error_that_says_what_to_do() {
    // Root writes where modes forbid it, but not even root makes files in sysfs.
    let dir = private();
    let parent =
        if rustix::process::geteuid().is_root() { Path::new("/sys/fs") } else { dir.path() };
    if parent == dir.path() {
        fs::set_permissions(parent, Permissions::from_mode(0o500)).unwrap();
    }
    let report = bind(&parent.join("kms.sock")).await.unwrap_err().report();
    assert!(report.contains("writable"), "{report}");
    assert!(report.contains(parent.to_str().unwrap()), "{report}");
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_somebody_keeps_locked_delays_a_start_and_does_not_prevent_it() {
    let dir = private();
    let lock = fs::File::open(dir.path()).unwrap();
    lock.lock().unwrap();
    let path = dir.path().join("kms.sock");
    let began = Instant::now();
    let listener = bind(&path).await.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(2), "it is waited for");
    assert!(listener.is_reachable());
    let error = bind(&path).await.unwrap_err();
    assert!(error.report().contains("answers there"), "{}", error.report());
}

#[tokio::test]
async fn a_socket_too_busy_to_answer_is_not_taken_for_stale() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let dir = private();
    let path = dir.path().join("kms.sock");
    let address = SocketAddrUnix::new(&path).unwrap();
    let socket = || {
        let flags = SocketFlags::NONBLOCK;
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
    };
    let busy = socket();
    rustix::net::bind(&busy, &address).unwrap();
    rustix::net::listen(&busy, 0).unwrap();
    let mut waiting = Vec::new();
    loop {
        let client = socket();
        match rustix::net::connect(&client, &address) {
            Ok(()) => waiting.push(client),
            Err(error) => break assert_eq!(error, Errno::AGAIN),
        }
    }
    let report = bind(&path).await.unwrap_err().report();
    assert!(report.contains("a busy process answers there"), "{report}");
    assert_eq!(names(dir.path()), ["kms.sock"]);
}

#[tokio::test]
async fn what_appears_after_the_look_is_never_overwritten() {
    let dir = private();
    let path = dir.path().join("kms.sock");
    let endpoint = at(&path);
    for stale in [false, true] {
        if stale {
            abandon(&path);
        }
        let parent = place::Parent::lock(&endpoint, dir.path()).await.unwrap();
        let found = parent.inspect("kms.sock".as_ref()).unwrap();
        assert_eq!(found.is_some(), stale);
        let private = place::PrivateDirectory::new(&parent).unwrap();
        let (_ours, inside) =
            private.listen("kms.sock".as_ref(), &SocketOptions::default()).unwrap();
        // Somebody who does not know our lock.
        let _ = fs::remove_file(&path);
        let theirs = StdListener::bind(&path).unwrap();
        let inode = path.symlink_metadata().unwrap().ino();
        let error = private.publish(&inside, "kms.sock".as_ref(), found.as_ref()).unwrap_err();
        assert!(error.report().contains("put something in its place"), "{}", error.report());
        drop(private);
        assert_eq!(path.symlink_metadata().unwrap().ino(), inode);
        assert_eq!(names(dir.path()), ["kms.sock"]);
        drop(theirs);
        fs::remove_file(&path).unwrap();
    }
}

/// The limit is the process's, so the test runs itself again as one of its own.
#[test]
fn accept_outlives_a_lack_of_descriptors() {
    const ALONE: &str = "SIDEKEY_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "socket::tests::accept_outlives_a_lack_of_descriptors"])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let dir = private();
        let path = dir.path().join("kms.sock");
        let listener = bind(&path).await.unwrap();
        let _client = at(&path).connect().await.unwrap();
        let before = getrlimit(Resource::Nofile);
        let lowest_free = fs::File::open("/dev/null").unwrap().as_raw_fd();
        let limit = u64::try_from(lowest_free).unwrap();
        setrlimit(Resource::Nofile, Rlimit { current: Some(limit), ..before }).unwrap();
        let relief = async {
            while listener.failures_logged.is_full() {
                sleep(Duration::from_millis(1)).await;
            }
            setrlimit(Resource::Nofile, before).unwrap();
        };
        let both = async { tokio::join!(listener.accept(), relief) };
        timeout(Duration::from_secs(10), both).await.expect("not accepted after the relief");
    });
}
