//! Which directory entries decide what a path means.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// As many links as the kernel follows.
const MAX_LINKS: u32 = 40;

/// Directories, and the names in them whose change may change what is read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Route(pub(super) BTreeMap<PathBuf, BTreeSet<OsString>>);

impl Route {
    /// Follows each path by hand, so that every link on the way is known: the
    /// links themselves, the file at the end, or the first part that is missing.
    pub(super) fn of<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let mut route = Self::default();
        for path in paths {
            // An empty or otherwise impossible path leads nowhere.
            if let Ok(path) = std::path::absolute(path) {
                route.follow(&path);
            }
        }
        route
    }

    fn follow(&mut self, path: &Path) {
        let mut rest = parts(path);
        let mut here = PathBuf::from("/");
        let mut links = 0;
        while let Some(part) = rest.pop_front() {
            if part == OsStr::new("..") {
                here.pop();
                continue;
            }
            let next = here.join(&part);
            match fs::symlink_metadata(&next).map(|meta| meta.file_type()) {
                Ok(kind) if kind.is_symlink() => {
                    self.add(&here, part);
                    links += 1;
                    let Ok(target) = fs::read_link(&next) else { return };
                    if links > MAX_LINKS {
                        return;
                    }
                    if target.is_absolute() {
                        here = PathBuf::from("/");
                    }
                    let mut ahead = parts(&target);
                    ahead.append(&mut rest);
                    rest = ahead;
                }
                Ok(kind) if kind.is_dir() && !rest.is_empty() => here = next,
                _ => return self.add(&here, part),
            }
        }
    }

    fn add(&mut self, directory: &Path, name: OsString) {
        self.0.entry(directory.to_owned()).or_default().insert(name);
    }
}

fn parts(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        })
        .collect()
}
