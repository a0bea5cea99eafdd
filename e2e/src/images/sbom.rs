//! The bill of materials of an image (CycloneDX): the crates in its binary, and the CA roots.
//!
//! cargo says which crates a build of that one package links: features are those of the package
//! alone, and what runs only while building (build scripts' and procedural macros' crates) is
//! left out. Checksums come from Cargo.lock. What is not in Cargo.lock cannot be listed: Rust's
//! standard library and the C library.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use aws_lc_rs::digest::{SHA256, digest};
use serde_json::{Value, json};
use tokio::process::Command;

use super::oci::Layout;
use super::platform::Platform;
use super::repository;
use super::roots;
use crate::binaries;

/// Who is who in `cargo tree`'s lines.
const SEPARATOR: char = '|';

/// What is in a binary.
pub(super) struct Bom {
    binary: String,
    root: Crate,
    crates: BTreeMap<Crate, Details>,
    checksums: BTreeMap<Crate, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Crate {
    name: String,
    version: String,
}

#[derive(Debug, Default)]
struct Details {
    licence: String,
    needs: BTreeSet<Crate>,
}

impl Bom {
    /// What a build of that binary for that platform links, with the FIPS module or without.
    pub(super) async fn ask_cargo(binary: &str, platform: Platform, fips: bool) -> Result<Self> {
        let wanted = binary.to_owned();
        let package = tokio::task::spawn_blocking(move || binaries::package_of(&wanted)).await??;
        let mut command = Command::from(binaries::cargo());
        command.args(["tree", "--locked", "--package", &package, "--prefix", "depth"]);
        command.args(["--edges", "normal,no-proc-macro", "--target", &platform.rust_target()]);
        command.args(["--format", &format!("{{p}}{SEPARATOR}{{l}}{SEPARATOR}")]);
        if fips {
            command.args(["--features", "fips"]);
        }
        let ran = command.stdin(Stdio::null()).output().await.context("cannot run cargo tree")?;
        let said = String::from_utf8_lossy(&ran.stderr);
        ensure!(ran.status.success(), "cargo tree failed: {}", said.trim());
        let (root, crates) = parse_tree(&String::from_utf8_lossy(&ran.stdout))?;
        let path = repository().join("Cargo.lock");
        let lock =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Self { binary: binary.to_owned(), root, crates, checksums: parse_lock(&lock) })
    }

    /// The version of the binary.
    pub(super) fn version(&self) -> &str {
        &self.root.version
    }

    /// The document for the image with those CA roots.
    pub(super) fn document(&self, image: &Layout, ca: &[u8]) -> Result<Vec<u8>> {
        let image_ref = format!("image:{}", self.binary);
        let file_ref = format!("file:/etc/ssl/certs/{}", roots::FILE);
        let mut components: Vec<Value> =
            self.crates.iter().map(|(own, details)| self.component(own, details)).collect();
        components.push(json!({
            "type": "file", "bom-ref": file_ref, "name": format!("/etc/ssl/certs/{}", roots::FILE),
            "hashes": [{"alg": "SHA-256", "content": hex(ca)}],
        }));
        let mut dependencies = vec![
            json!({"ref": image_ref, "dependsOn": [self.root.reference(), file_ref]}),
            json!({"ref": file_ref, "dependsOn": []}),
        ];
        dependencies.extend(self.crates.iter().map(|(own, details)| {
            let needs: Vec<String> = details.needs.iter().map(Crate::reference).collect();
            json!({"ref": own.reference(), "dependsOn": needs})
        }));
        let content = image.digest.strip_prefix("sha256:").context("the digest is no SHA-256")?;
        let mut document = json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": {
                "timestamp": image.created,
                "component": {
                    "type": "container", "bom-ref": image_ref, "name": self.binary,
                    "version": self.version(),
                    "hashes": [{"alg": "SHA-256", "content": content}],
                },
            },
            "components": components,
            "dependencies": dependencies,
        });
        document["serialNumber"] = serial_number(&document).into();
        let mut text = serde_json::to_vec_pretty(&document)?;
        text.push(b'\n');
        Ok(text)
    }

    fn component(&self, own: &Crate, details: &Details) -> Value {
        let Crate { name, version } = own;
        let kind = if *own == self.root { "application" } else { "library" };
        let mut component = json!({
            "type": kind, "bom-ref": own.reference(), "name": name, "version": version,
            "licenses": [{"expression": details.licence}],
        });
        // Ours have neither: no registry has them.
        if let Some(checksum) = self.checksums.get(own) {
            component["purl"] = format!("pkg:cargo/{name}@{}", version.replace('+', "%2B")).into();
            component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
        }
        component
    }
}

impl Crate {
    fn reference(&self) -> String {
        format!("crate:{}@{}", self.name, self.version)
    }
}

/// Reads `cargo tree --prefix depth`. A crate that was shown before is shown without what it
/// needs, so nothing is lost by taking each line once.
fn parse_tree(text: &str) -> Result<(Crate, BTreeMap<Crate, Details>)> {
    let mut crates: BTreeMap<Crate, Details> = BTreeMap::new();
    let mut path: Vec<Crate> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let (depth, own, licence) =
            parse_line(line).with_context(|| format!("cargo tree printed {line:?}"))?;
        path.truncate(depth);
        ensure!(path.len() == depth, "cargo tree left out a level before {line:?}");
        if let Some(parent) = path.last() {
            crates.entry(parent.clone()).or_default().needs.insert(own.clone());
        }
        crates.entry(own.clone()).or_default().licence = licence;
        path.push(own);
    }
    let root = path.first().context("cargo tree printed nothing")?.clone();
    Ok((root, crates))
}

fn parse_line(line: &str) -> Option<(usize, Crate, String)> {
    let name = line.find(|c: char| !c.is_ascii_digit())?;
    let mut fields = line[name..].split(SEPARATOR);
    let mut words = fields.next()?.split(' ');
    let own = Crate {
        name: words.next()?.to_owned(),
        version: words.next()?.strip_prefix('v')?.to_owned(),
    };
    // Old manifests write `MIT/Apache-2.0` for a choice.
    let choice: Vec<&str> = fields.next()?.split('/').map(str::trim).collect();
    Some((line[..name].parse().ok()?, own, choice.join(" OR ")))
}

/// The checksums in Cargo.lock. It is TOML, of which cargo uses one line for each value.
fn parse_lock(text: &str) -> BTreeMap<Crate, String> {
    let packages = text.split("[[package]]").skip(1);
    packages
        .filter_map(|package| {
            let value = |name: &str| {
                let mut lines = package.lines().filter_map(|line| line.split_once(" = "));
                let (_, value) = lines.find(|(key, _)| *key == name)?;
                Some(value.trim_matches('"').to_owned())
            };
            Some((Crate { name: value("name")?, version: value("version")? }, value("checksum")?))
        })
        .collect()
}

/// A name for this very document, made from its content, so that it is the same each time.
fn serial_number(document: &Value) -> String {
    let mut hash = hex(document.to_string().as_bytes());
    // A UUID of version 8 has what its maker likes in the other bits (RFC 9562).
    hash.replace_range(12..13, "8");
    hash.replace_range(16..17, "8");
    let parts = [&hash[..8], &hash[8..12], &hash[12..16], &hash[16..20], &hash[20..32]];
    format!("urn:uuid:{}", parts.join("-"))
}

fn hex(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "0top v1.0.0 (/somewhere/top)|Apache-2.0|\n1left v2.0.0|MIT/Apache-2.0|\n\
                        2deep v3.0.0+c.1|MIT|\n1right v4.0.0|ISC|\n2left v2.0.0|MIT/Apache-2.0| (*)\n";

    #[test]
    fn a_tree_is_read_with_all_its_edges() {
        let (root, crates) = parse_tree(TREE).unwrap();
        assert_eq!(root.reference(), "crate:top@1.0.0");
        let needs = |name: &str| -> Vec<String> {
            let (_, details) = crates.iter().find(|(own, _)| own.name == name).unwrap();
            details.needs.iter().map(Crate::reference).collect()
        };
        assert_eq!(crates.len(), 4);
        assert_eq!(needs("top"), ["crate:left@2.0.0", "crate:right@4.0.0"]);
        assert_eq!(needs("right"), ["crate:left@2.0.0"]);
        assert_eq!(needs("left"), ["crate:deep@3.0.0+c.1"]);
        assert!(crates.values().any(|details| details.licence == "MIT OR Apache-2.0"));
        for bad in ["", "0top", "0top v1.0.0|MIT|\n2deep v1.0.0|MIT|", "warning: something"] {
            parse_tree(bad).unwrap_err();
        }
    }

    #[test]
    fn checksums_are_those_of_the_lock_file() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n\n[[package]]\n\
                    name = \"b\"\nversion = \"2.0.0\"\nsource = \"registry\"\nchecksum = \"0f\"\n\
                    dependencies = [\n \"a\",\n]\n";
        let sums = parse_lock(lock);
        let b = Crate { name: "b".to_owned(), version: "2.0.0".to_owned() };
        assert_eq!(sums.into_iter().collect::<Vec<_>>(), [(b, "0f".to_owned())]);
    }

    #[test]
    fn a_serial_number_is_a_uuid_of_the_content() {
        let number = serial_number(&json!({"a": 1}));
        assert_ne!(number, serial_number(&json!({"a": 2})));
        let uuid = number.strip_prefix("urn:uuid:").unwrap();
        let lengths: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert_eq!(&uuid[14..15], "8");
    }
}
