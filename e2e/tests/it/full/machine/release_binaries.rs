//! What users get: every binary is one file that runs in an empty image, and its bill of materials
//! names what is in it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;
use sidekey_e2e::bench::{Binary, Memory};
use sidekey_e2e::vendor::every;
use sidekey_e2e::{Scratch, binaries, images};

#[test]
fn every_binary_is_static_but_for_what_loads_libraries_and_stripped() {
    let (products, dynamic) = (binaries::products().unwrap(), binaries::dynamic().unwrap());
    for name in ["sidekey-local", "sidekey-shim"] {
        assert!(products.contains(name), "{products:?}");
    }
    for name in products {
        let binary = Binary::read(&binaries::path(&name).unwrap()).unwrap();
        assert_ne!(
            binary.is_static,
            dynamic.contains(&name),
            "{name} needs a loader or a shared library, or should and does not"
        );
        assert!(binary.is_stripped, "{name} carries its symbols");
    }
}

/// The most that a provider may take when nobody asks it, its vendor's library apart, and its program
/// on disk, in MiB. Those that `cargo xbench` measures have their bars there.
const BARS: [(&str, u64, u64); 6] = [
    ("azure", 9, 10),
    ("gcp", 9, 10),
    ("ibmcloud", 9, 10),
    ("kmip", 6, 8),
    ("okms", 6, 7),
    ("pkcs11", 8, 8),
];

/// With one key, proven, as each vendor's test has it.
#[tokio::test]
async fn a_provider_is_as_small_as_it_is_promised() {
    let scratch = Scratch::new("small").unwrap();
    let mut known = BARS.to_vec();
    for (index, (vendor, kms)) in every(&scratch).await.unwrap().into_iter().enumerate() {
        let Some((_, rss, binary)) = BARS.iter().find(|(name, ..)| *name == vendor) else {
            continue;
        };
        known.retain(|(name, ..)| *name != vendor);
        let name = format!("small-{index}");
        let mut provider = kms.provider(&scratch, &name).await.unwrap();
        let pid = provider.process().pid().unwrap();
        let used = Memory::of(pid).unwrap().rss - libraries(pid);
        let size =
            fs::metadata(binaries::path(&format!("sidekey-{vendor}")).unwrap()).unwrap().len();
        println!("sidekey-{vendor}: {used} KiB when idle, {size} bytes on disk");
        assert!(used <= rss * 1024, "sidekey-{vendor} has {used} KiB, more than {rss} MiB");
        assert!(
            size <= binary * 1024 * 1024,
            "sidekey-{vendor} has {size} bytes, more than {binary} MiB"
        );
    }
    assert!(known.is_empty(), "nobody has started {known:?}");
}

/// What a process holds of libraries that it has loaded itself, which are its vendor's and whatever
/// those need, in KiB.
fn libraries(pid: u32) -> u64 {
    const OWN: [&str; 4] = ["ld-linux", "libc.so", "libgcc_s.so", "libm.so"];
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let (mut counts, mut sum) = (false, 0);
    for line in smaps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["Rss:", kib, "kB"] if counts => sum += kib.parse::<u64>().unwrap(),
            // A mapping: addresses, rights, offset, device, inode, and mostly a path.
            [addresses, _, _, _, _, ref path @ ..] if addresses.contains('-') => {
                let name = path.last().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
                counts = name.contains(".so") && !OWN.iter().any(|own| name.starts_with(own));
            }
            _ => {}
        }
    }
    sum
}

/// Messages of panics name the file that they come from, so a binary itself tells some of the
/// crates that are in it.
#[tokio::test]
async fn no_crate_that_the_binary_names_is_missing() {
    let scratch = Scratch::new("shipped").unwrap();
    let folders = images::names(&images::folder()).unwrap();
    let folders: Vec<&str> = folders.iter().map(String::as_str).collect();
    for image in images::ready(&folders, scratch.path()).await.unwrap() {
        let crates = listed(&image.sbom);
        let binary = fs::read(binaries::path(&image.name).unwrap()).unwrap();
        let binary = String::from_utf8_lossy(&binary);
        let mut seen = BTreeSet::new();
        for path in binary.split("/registry/src/").skip(1) {
            let folder = path.split('/').nth(1).unwrap_or_default();
            let other = |c: char| !c.is_ascii_alphanumeric() && !"-_.+".contains(c);
            let folder = folder.split(other).next().unwrap_or_default();
            let number = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
            let mut dashes = folder.match_indices('-').map(|(at, _)| at);
            if let Some(at) = dashes.find(|at| number(&folder[at + 1..])) {
                seen.insert(format!("{} {}", &folder[..at], &folder[at + 1..]));
            }
        }
        assert!(seen.len() > 10, "{}: {seen:?}", image.name);
        let missing: Vec<&String> = seen.difference(&crates).collect();
        assert!(missing.is_empty(), "{} has {missing:?}", image.name);
    }
}

/// Name and version of the crates that a bill of materials lists.
fn listed(sbom: &Path) -> BTreeSet<String> {
    let document: Value = serde_json::from_slice(&fs::read(sbom).unwrap()).unwrap();
    let components = document["components"].as_array().unwrap().iter();
    let crates = components.filter(|component| component["type"] != "file");
    let text = |one: &Value, field: &str| one[field].as_str().unwrap().to_owned();
    crates.map(|one| format!("{} {}", text(one, "name"), text(one, "version"))).collect()
}
