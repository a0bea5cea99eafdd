//! Room for the next revision: a full disk makes a swap fail half-way.

use super::{Area, Findings, Level, Options};

/// A revision with many keys and certificates needs less than this.
const LEAST: u64 = 16 * 1024 * 1024;

pub(super) fn examine(options: &Options, findings: &mut Findings) {
    for path in [&options.config_dir, &options.socket_dir] {
        let Ok(found) = rustix::fs::statvfs(path) else { continue };
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        let (mib, files) = (free / (1024 * 1024), found.f_favail);
        let text = format!("{mib} MiB and {files} files are free");
        // Some file systems count no files.
        let level = match (free, files) {
            (free, _) if free < LEAST => Level::Problem,
            (_, files) if files < 100 && found.f_files > 0 => Level::Problem,
            _ => Level::Ok,
        };
        let fix = (level == Level::Problem).then_some("make room: publishing needs some");
        findings.add(Area::Disk, level, path.display(), text, fix);
    }
}
