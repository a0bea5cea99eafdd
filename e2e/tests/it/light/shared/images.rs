//! Promise: every folder of `images/` becomes an image that holds one static binary and the CA
//! roots, is the same each time, lists what is in it, and runs with a read-only root as any user.
//!
//! A container is made here by hand, from what the kernel has: a mount namespace whose root is
//! the unpacked image, mounted read-only, a network namespace, and a user that is not root.
//! All that takes root.

mod built;
mod contents;
mod names;
mod run;
mod sbom;
