//! The hashes that HyperShift makes names of. Stored data carries these names: they must come out
//! just as they do there.

use serde_json::Value;

use crate::model::AzureKey;

/// 32-bit FNV-1, as Go's `fnv.New32`.
pub fn fnv1(bytes: &[u8]) -> u32 {
    bytes.iter().fold(OFFSET, |hash, byte| hash.wrapping_mul(PRIME) ^ u32::from(*byte))
}

/// 32-bit FNV-1a, as Go's `fnv.New32a`.
pub fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(OFFSET, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(PRIME))
}

const OFFSET: u32 = 0x811c_9dc5;
const PRIME: u32 = 0x0100_0193;

/// The provider name of an AWS key.
pub fn aws_provider(arn: &str) -> String {
    format!("awskmskey-{}", fnv1(arn.as_bytes()))
}

/// The provider name of an Azure key.
pub fn azure_provider(key: &AzureKey) -> String {
    // Compact JSON with the fields in just this order.
    let AzureKey { vault, name, version, managed_hsm } = key;
    let text = |text: &str| Value::from(text).to_string();
    let hsm = if *managed_hsm { r#","keyVaultType":"ManagedHSM""# } else { "" };
    let json = format!(
        r#"{{"keyVaultName":{},"keyName":{},"keyVersion":{}{hsm}}}"#,
        text(vault),
        text(name),
        text(version)
    );
    format!("azure-{:08x}", fnv1a(json.as_bytes()))
}

/// The name of an AES-CBC key.
pub fn aescbc_key(key: &[u8]) -> String {
    format!("key-{}", fnv1(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_out_as_hypershift_makes_them() {
        assert_eq!(aws_provider("test"), "awskmskey-3157003241");
        let arn = "arn:aws:kms:us-east-1:123456789012:key/12345678-1234-1234-1234-123456789012";
        assert_eq!(aws_provider(arn), "awskmskey-445794736");
        let azure = |vault: &str, name: &str, managed_hsm: bool| {
            let (vault, name, version) = (vault.to_owned(), name.to_owned(), "1".to_owned());
            azure_provider(&AzureKey { vault, name, version, managed_hsm })
        };
        assert_eq!(azure("vault", "key", false), "azure-be23a676");
        assert_eq!(azure("vault", "key", true), "azure-46685c54");
        assert_eq!(azure("test-kms-keyvault", "test-key", false), "azure-b6969f37");
    }

    #[test]
    fn the_hashes_are_fnv() {
        // The published vectors of the algorithm.
        assert_eq!((fnv1(b""), fnv1a(b"")), (0x811c_9dc5, 0x811c_9dc5));
        assert_eq!((fnv1(b"a"), fnv1a(b"a")), (0x050c_5d7e, 0xe40c_292c));
        assert_eq!((fnv1(b"foobar"), fnv1a(b"foobar")), (0x31f0_b262, 0xbf9c_f968));
        assert_eq!(aescbc_key(b"test"), "key-3157003241");
    }
}
