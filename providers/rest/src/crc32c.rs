//! CRC-32C (Castagnoli), by which a KMS and its clients find what was altered between the encryption
//! of the connection and their own. What is summed is small, so that a table of one byte is enough.

/// The polynomial, its bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut sum = index as u32;
        let mut bit = 0;
        while bit < 8 {
            sum = (sum >> 1) ^ (POLYNOMIAL * (sum & 1));
            bit += 1;
        }
        table[index] = sum;
        index += 1;
    }
    table
};

/// The sum.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| {
        let [low, ..] = sum.to_le_bytes();
        (sum >> 8) ^ TABLE[usize::from(low ^ byte)]
    };
    !bytes.iter().fold(u32::MAX, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sums_of_rfc_3720_come_out() {
        let ascending: Vec<u8> = (0..32).collect();
        for (bytes, sum) in [
            (&b""[..], 0),
            (b"123456789", 0xe306_9283),
            (&[0; 32], 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (&ascending, 0x46dd_794e),
        ] {
            assert_eq!(crc32c(bytes), sum);
        }
    }
}
