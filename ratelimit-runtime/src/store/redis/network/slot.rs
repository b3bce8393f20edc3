//! The hash slot of a key in a Redis Cluster: the CRC16 (XMODEM) of its hash tag, or of the whole key if it
//! has none, modulo 16384. Source: the Redis Cluster specification, "Key distribution model" and "Hash tags".

/// The number of hash slots.
pub(crate) const SLOTS: u16 = 16384;

/// Returns the hash slot of a key.
pub(crate) fn slot(key: &[u8]) -> u16 {
    crc16(tag(key).unwrap_or(key)) % SLOTS
}

/// Returns the hash tag: the bytes between the first `{` and the first `}` after it, if there are any.
fn tag(key: &[u8]) -> Option<&[u8]> {
    let from = key.iter().position(|byte| *byte == b'{')? + 1;
    let length = key[from..].iter().position(|byte| *byte == b'}')?;
    (length > 0).then(|| &key[from..from + length])
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| crc << 8 ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

/// The CRC16 of each byte.
const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = ((byte as u16) << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot(b"foo{bar}{zap}"), slot(b"bar"));
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
        assert_eq!(slot(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot(b"foo{bar"), crc16(b"foo{bar") % SLOTS);
    }

    #[test]
    fn a_client_that_chooses_its_key_can_choose_the_slot() {
        let of_slot_7 = (0_u32..)
            .filter(|number| slot(format!("rl:fixed:1m:login{{user{number}}}").as_bytes()) == 7);
        assert_eq!(of_slot_7.take(10).count(), 10);
    }
}
