//! Who may open the socket.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};

use sidekey_core::Endpoint;

use crate::check::Check;
use crate::trial::{Stop, Trial, broken};

pub(crate) const CHECKS: &[Check] = &[Check {
    id: "socket.mode",
    promise: "The socket is not open to every user of the node",
    why: "Whoever can connect can decrypt every key that is stored in etcd. Connecting needs \
          write permission, so the mode must not give it to others.",
    needs: &[],
    judge: |trial| Box::pin(mode(trial)),
}];

async fn mode(trial: &Trial) -> Result<String, Stop> {
    let Endpoint::Path(path) = &trial.plugin.endpoint else {
        return Ok("abstract: no mode to judge, the plugin must look at the peer's uid".to_owned());
    };
    let file = std::fs::metadata(path)
        .map_err(|error| broken(format!("cannot look at {}: {error}", path.display())))?;
    let mode = file.permissions().mode() & 0o7777;
    if !file.file_type().is_socket() {
        return Err(broken(format!("{} is not a socket", path.display())));
    }
    match mode & 0o007 {
        0 => Ok(format!("mode {mode:04o}")),
        other if other & 0o002 == 0 => {
            Ok(format!("mode {mode:04o}: others cannot connect, but 0660 or 0600 is cleaner"))
        }
        _ => Err(broken(format!("mode {mode:04o} lets every user of the node connect"))),
    }
}
