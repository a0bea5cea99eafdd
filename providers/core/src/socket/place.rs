//! Putting a socket into the file system in one step.

use std::ffi::OsStr;
use std::fmt::Display;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Gid, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use tokio::time::sleep;

use super::{Peer, SocketOptions, in_use};
use crate::socket::endpoint::MAX_PATH;
use crate::{Endpoint, Error, Kind};

/// Our directories within that of the socket; each lives for an instant.
const PREFIX: &str = ".sidekey-";

/// Whoever holds the directory's lock for two seconds does not mean to let go of it.
const LOCK_ATTEMPTS: u32 = 200;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// A socket that listens under its final name.
pub(super) struct BoundSocket {
    pub(super) listener: UnixListener,
    pub(super) dev: u64,
    pub(super) ino: u64,
    pub(super) warning: Option<String>,
}

/// What came of knocking at a socket.
pub(super) enum SocketState {
    /// Somebody listens; the text says who, as far as it can be known.
    Alive(String),
    /// A socket that no process listens on.
    Dead,
    /// Nothing is there.
    Nothing,
}

/// The directory of the socket, locked against all others of us who place one there.
pub(super) struct Parent<'a> {
    fd: OwnedFd,
    path: &'a Path,
    endpoint: &'a Endpoint,
    locked: bool,
}

/// A private directory that goes when dropped, with the socket in it, if any.
pub(super) struct PrivateDirectory<'a> {
    parent: &'a Parent<'a>,
    fd: OwnedFd,
    name: String,
}

/// Binds `path`, which is that of `endpoint`.
///
/// The socket is made in a private directory, gets its mode and group there and
/// is then renamed: nobody can connect before they are right.
pub(super) async fn bind(
    endpoint: &Endpoint,
    path: &Path,
    options: &SocketOptions,
) -> Result<BoundSocket, Error> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(failed(endpoint, "the path names no file"));
    };
    if path.as_os_str().len() > MAX_PATH {
        return Err(failed(endpoint, "the path is longer than the 107 bytes that Linux allows"));
    }
    if options.mode & !0o777 != 0 {
        return Err(failed(endpoint, format!("{:#o} is no mode of a socket", options.mode))
            .with_hint("use 0660 or 0600"));
    }
    let parent = Parent::lock(endpoint, parent).await?;
    if parent.locked {
        parent.sweep();
    }
    let stale = parent.inspect(name)?;
    let private = PrivateDirectory::new(&parent)?;
    let (listener, inside) = private.listen(name, options)?;
    let stat = private.stat(&inside).map_err(|error| parent.failed("make the socket", error))?;
    private.publish(&inside, name, stale.as_ref())?;
    let warning = parent.warning();
    Ok(BoundSocket { listener, dev: stat.st_dev, ino: stat.st_ino, warning })
}

/// Knocks without ever waiting: a full queue is an answer, too.
pub(super) fn ask(endpoint: &Endpoint) -> Result<SocketState, Errno> {
    match endpoint.knock() {
        Ok(fd) => Ok(SocketState::Alive(describe(fd))),
        Err(Errno::AGAIN) => Ok(SocketState::Alive("a busy process".to_owned())),
        Err(Errno::PROTOTYPE) => Ok(SocketState::Alive("a process of another protocol".to_owned())),
        Err(Errno::CONNREFUSED) => Ok(SocketState::Dead),
        Err(Errno::NOENT) => Ok(SocketState::Nothing),
        Err(error) => Err(error),
    }
}

fn describe(connection: OwnedFd) -> String {
    let peer = tokio::net::UnixStream::from_std(UnixStream::from(connection))
        .and_then(|stream| Peer::of(&stream));
    match peer {
        Ok(Peer { uid, pid: Some(pid), .. }) => format!("process {pid} of uid {uid}"),
        Ok(Peer { uid, .. }) => format!("a process of uid {uid}"),
        Err(_) => "another process".to_owned(),
    }
}

impl<'a> Parent<'a> {
    pub(super) async fn lock(endpoint: &'a Endpoint, path: &'a Path) -> Result<Self, Error> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| {
            let hint = match error {
                Errno::NOENT => format!("make it: mkdir -p -m 0750 {}", path.display()),
                _ => format!("it must be a directory that uid {} may read and write", uid()),
            };
            failed(endpoint, format!("cannot open directory {path:?}"))
                .with_source(std::io::Error::from(error))
                .with_hint(hint)
        })?;
        // Everybody who can read the directory can hold the lock, and must not keep us from starting.
        // Without it two of us who start at once may both fail, and start again.
        for _ in 0..LOCK_ATTEMPTS {
            if rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).is_ok() {
                return Ok(Self { fd, path, endpoint, locked: true });
            }
            sleep(LOCK_PAUSE).await;
        }
        let hint = format!("fuser -v {} shows who", path.display());
        tracing::warn!(directory = %path.display(), hint,
            "another process keeps the socket's directory locked; going on without");
        Ok(Self { fd, path, endpoint, locked: false })
    }

    /// Removes what a killed process left behind. We hold the lock under which such
    /// directories are made and removed, so that whatever is there is nobody's.
    /// (Process ids would not tell: containers that share the directory have each
    /// their own.)
    fn sweep(&self) {
        let Ok(entries) = Dir::read_from(&self.fd) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if name.to_bytes().starts_with(PREFIX.as_bytes())
                && let Ok(fd) = open_nest(&self.fd, OsStr::from_bytes(name.to_bytes()))
            {
                clear(&fd);
                // Fails if there is more in it than sockets: then it is not ours.
                let _ = rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR);
            }
        }
    }

    /// The stale socket that must be replaced, if there is one. It is held open, so
    /// that its inode number cannot become another file's.
    pub(super) fn inspect(&self, name: &OsStr) -> Result<Option<OwnedFd>, Error> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.fd, name, flags, Mode::empty())
            .and_then(|fd| rustix::fs::fstat(&fd).map(|stat| (fd, stat)));
        let (found, stat) = match opened {
            Ok(opened) => opened,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(self.failed("see what is there in", error)),
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::Socket {
            let what = match kind {
                FileType::Directory => "a directory",
                FileType::Symlink => "a symbolic link",
                FileType::RegularFile => "a file",
                _ => "something that is not a socket",
            };
            return Err(failed(self.endpoint, format!("{what} is in its place"))
                .with_hint("move it away or choose another path; it was left as it is"));
        }
        match ask(self.endpoint) {
            Ok(SocketState::Alive(who)) => Err(in_use(self.endpoint, &who)),
            Ok(SocketState::Dead) => Ok(Some(found)),
            Ok(SocketState::Nothing) => Ok(None),
            Err(error) => Err(failed(self.endpoint, "cannot tell whether the socket is in use")
                .with_source(std::io::Error::from(error))
                .with_hint("remove it if no process listens on it; it was left as it is")),
        }
    }

    fn warning(&self) -> Option<String> {
        let mode = rustix::fs::fstat(&self.fd).ok()?.st_mode & 0o1777;
        (mode & 0o027 != 0 && !self.is_empty_dir(mode)).then(|| {
            format!(
                "directory {:?} of socket {} has mode {mode:04o}: others can reach or replace \
                 the socket; chmod 0750 it, or give the socket a directory of its own",
                self.path, self.endpoint
            )
        })
    }

    /// Whether it is in an emptyDir: kubelet lets everybody write there, but only those containers
    /// come near it that mount it.
    fn is_empty_dir(&self, mode: u32) -> bool {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/thread-self/{name}"));
        let info = read(&format!("fdinfo/{}", self.fd.as_raw_fd())).unwrap_or_default();
        let mount = info.lines().find_map(|line| line.strip_prefix("mnt_id:"));
        let mounts = read("mountinfo").unwrap_or_default();
        let path = std::fs::read_link(format!("/proc/thread-self/fd/{}", self.fd.as_raw_fd()));
        let (mount, path) = (mount.unwrap_or_default().trim(), path.unwrap_or_default());
        is_empty_dir(&mounts, mount, &path, mode)
    }

    fn failed(&self, what: &str, error: Errno) -> Error {
        let path = self.path;
        let hint = match error {
            Errno::ROFS => format!("mount {} writable, for example an emptyDir", path.display()),
            Errno::ACCESS | Errno::PERM => {
                format!("make {} writable for uid {}: chown or chmod it", path.display(), uid())
            }
            Errno::NOSPC | Errno::DQUOT => format!("make room in {}", path.display()),
            _ => format!("check directory {}", path.display()),
        };
        failed(self.endpoint, format!("cannot {what} {path:?}"))
            .with_source(std::io::Error::from(error))
            .with_hint(hint)
    }
}

impl<'a> PrivateDirectory<'a> {
    pub(super) fn new(parent: &'a Parent<'a>) -> Result<Self, Error> {
        let pid = std::process::id();
        let mut n = 0;
        let name = loop {
            let name = format!("{PREFIX}{pid}-{n}");
            match rustix::fs::mkdirat(&parent.fd, &name, Mode::RWXU) {
                Ok(()) => break name,
                // Left by another user, and not ours to sweep.
                Err(Errno::EXIST) if n < 100 => n += 1,
                Err(error) => return Err(parent.failed("create the socket in", error)),
            }
        };
        match open_nest(&parent.fd, OsStr::new(&name)) {
            Ok(fd) => Ok(Self { parent, fd, name }),
            Err(error) => {
                let _ = rustix::fs::unlinkat(&parent.fd, &name, AtFlags::REMOVEDIR);
                Err(parent.failed("create the socket in", error))
            }
        }
    }

    /// Listens inside, with mode and group set; also returns the name there.
    pub(super) fn listen(
        &self,
        name: &OsStr,
        options: &SocketOptions,
    ) -> Result<(UnixListener, PathBuf), Error> {
        // Tools like `ss` show the path that was bound, so the full one is best;
        // where it does not fit, the way through the descriptor is short.
        let mut inside = PathBuf::from(name);
        let mut path = self.parent.path.join(&self.name).join(&inside);
        if path.as_os_str().len() > MAX_PATH {
            inside = PathBuf::from("s");
            path = PathBuf::from(format!("/proc/self/fd/{}/s", self.fd.as_raw_fd()));
        }
        let listener = UnixListener::bind(path).map_err(|error| {
            failed(self.parent.endpoint, format!("cannot bind in {:?}", self.parent.path))
                .with_source(error)
        })?;
        if let Some(group) = options.group {
            let gid = Some(Gid::from_raw(group));
            rustix::fs::chownat(&self.fd, &inside, None, gid, AtFlags::SYMLINK_NOFOLLOW).map_err(
                |error| {
                    failed(self.parent.endpoint, format!("cannot give the socket to group {group}"))
                        .with_source(std::io::Error::from(error))
                        .with_hint(format!(
                            "uid {} must be a member of group {group} (fsGroup or \
                             supplementalGroups), or leave the group out",
                            uid()
                        ))
                },
            )?;
        }
        // What is opened here is ours alone, so there is no link to be followed.
        let mode = Mode::from_raw_mode(options.mode);
        rustix::fs::chmodat(&self.fd, &inside, mode, AtFlags::empty())
            .map_err(|error| self.parent.failed("set the mode of the socket in", error))?;
        Ok((listener, inside))
    }

    fn stat(&self, inside: &Path) -> Result<Stat, Errno> {
        rustix::fs::statat(&self.fd, inside, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Gives the socket its final name. What does not respect our lock may have put
    /// something there since we looked: that is never overwritten.
    pub(super) fn publish(
        &self,
        inside: &Path,
        name: &OsStr,
        stale: Option<&OwnedFd>,
    ) -> Result<(), Error> {
        let (private, parent) = (&self.fd, &self.parent.fd);
        let flags = if stale.is_some() { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
        let swap = || rustix::fs::renameat_with(private, inside, parent, name, flags);
        let taken = || {
            failed(self.parent.endpoint, "another process has just put something in its place")
                .with_hint("make sure that no two processes use this path")
        };
        match (swap(), stale) {
            (Ok(()), None) => Ok(()),
            (Ok(()), Some(stale)) => {
                // What we hold now must be what we looked at.
                let known = rustix::fs::fstat(stale).map(|stat| (stat.st_dev, stat.st_ino));
                let held = self.stat(inside).map(|stat| (stat.st_dev, stat.st_ino));
                if known.is_ok() && known == held {
                    return Ok(());
                }
                swap().map_err(|error| self.parent.failed("give back the socket in", error))?;
                Err(taken())
            }
            (Err(Errno::EXIST), None) => Err(taken()),
            // File systems that know no flags.
            (Err(Errno::INVAL | Errno::NOSYS), _) => {
                rustix::fs::renameat(private, inside, parent, name)
                    .map_err(|error| self.parent.failed("rename the socket in", error))
            }
            (Err(error), _) => Err(self.parent.failed("rename the socket in", error)),
        }
    }
}

impl Drop for PrivateDirectory<'_> {
    fn drop(&mut self) {
        clear(&self.fd);
        let _ = rustix::fs::unlinkat(&self.parent.fd, &self.name, AtFlags::REMOVEDIR);
    }
}

/// Whether this directory on the mount of this number is an emptyDir, by `/proc/self/mountinfo`: in a
/// directory of kubelet's, or a tmpfs of its own. The sticky bit is on directories for everybody,
/// like /tmp.
fn is_empty_dir(mounts: &str, mount: &str, path: &Path, mode: u32) -> bool {
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields.filter(|fields| fields[0] == mount).any(|fields| {
        let [root, point] = [3, 4].map(|at| fields.get(at).copied().unwrap_or_default());
        let kind = fields.iter().skip_while(|field| **field != "-").nth(1);
        let whole = root == "/" && Path::new(point) == path;
        let memory = whole && kind == Some(&"tmpfs") && mode == 0o777;
        memory || root.contains("/volumes/kubernetes.io~empty-dir/")
    })
}

fn open_nest(parent: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// Removes the sockets in a directory of ours, and nothing else.
fn clear(private: &OwnedFd) {
    let Ok(entries) = Dir::read_from(private) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_socket = rustix::fs::statat(private, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket);
        if is_socket {
            let _ = rustix::fs::unlinkat(private, name, AtFlags::empty());
        }
    }
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn failed(endpoint: &Endpoint, why: impl Display) -> Error {
    Error::new(Kind::Config, format!("cannot listen on {endpoint}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_dir_is_no_loose_directory() {
        // As containers see them: on disk, in memory; a host's directory, /run and /tmp.
        let mounts = [
            "601 590 253:1 /var/lib/kubelet/pods/6d/volumes/kubernetes.io~empty-dir/s /s rw - ext4 /dev/vda1 rw",
            "602 590 0:50 / /var/run/kmsplugin rw,relatime master:3 - tmpfs tmpfs rw,size=64k",
            "603 590 253:1 /var/run/sidekey /var/run/sidekey rw - ext4 /dev/vda1 rw",
            "604 590 0:25 /sidekey /run/sidekey rw - tmpfs tmpfs rw",
            "605 590 0:26 / /tmp rw shared:5 - tmpfs tmpfs rw",
        ]
        .join("\n");
        for (mount, path, mode, kubelets) in [
            ("601", "/s", 0o777, true),
            ("602", "/var/run/kmsplugin", 0o777, true),
            ("602", "/var/run/kmsplugin/in", 0o777, false),
            ("603", "/var/run/sidekey", 0o777, false),
            ("604", "/run/sidekey", 0o777, false),
            ("605", "/tmp", 0o1777, false),
            ("602", "/var/run/kmsplugin", 0o755, false),
            ("60", "/var/run/kmsplugin", 0o777, false),
        ] {
            let found = is_empty_dir(&mounts, mount, Path::new(path), mode);
            assert_eq!(found, kubelets, "{mount} {path} {mode:o}");
        }
    }
}
