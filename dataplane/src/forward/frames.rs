//! Where the frames of a WebSocket end (RFC 6455 §5.2), in the bytes that went to the client: a
//! close frame of ours is one only between two of the application's.

/// The longest head of a frame without its mask: two bytes, and a length of eight.
const MAX_HEAD: usize = 10;

/// Follows one direction of a WebSocket.
#[derive(Default)]
pub struct Frames {
    /// The head of the frame that has begun.
    head: [u8; MAX_HEAD],
    /// Bytes of the head that have passed.
    have: usize,
    /// Bytes of the frame that are still to come, once its head has passed.
    left: u64,
}

impl Frames {
    /// These bytes have passed.
    pub fn pass(&mut self, mut bytes: &[u8]) {
        loop {
            let skipped = usize::try_from(self.left).unwrap_or(usize::MAX);
            let skipped = skipped.min(bytes.len());
            self.left -= skipped as u64;
            let Some((byte, rest)) = bytes.get(skipped..).and_then(<[u8]>::split_first) else {
                return;
            };
            bytes = rest;
            if let Some(place) = self.head.get_mut(self.have) {
                *place = *byte;
            }
            self.have += 1;
            if let Some(length) = self.length() {
                self.have = 0;
                self.left = length;
            }
        }
    }

    /// Whether the last frame has passed whole.
    pub const fn is_between(&self) -> bool {
        self.have == 0 && self.left == 0
    }

    /// What follows the head, once the head is whole: the mask and the payload.
    fn length(&self) -> Option<u64> {
        let [_, second, long @ ..] = self.head;
        let [a, b, ..] = long;
        let (needed, length) = match second & 0x7f {
            126 => (4, u64::from(u16::from_be_bytes([a, b]))),
            127 => (MAX_HEAD, u64::from_be_bytes(long)),
            short => (2, u64::from(short)),
        };
        let mask = if second & 0x80 == 0 { 0 } else { 4 };
        (self.have >= needed.max(2)).then(|| length.saturating_add(mask))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(length: usize, masked: bool) -> Vec<u8> {
        let mask = if masked { 0x80 } else { 0 };
        let mut bytes = vec![0x82];
        match length {
            0..126 => bytes.push(mask | u8::try_from(length).unwrap()),
            126..65_536 => {
                bytes.push(mask | 126);
                bytes.extend(u16::try_from(length).unwrap().to_be_bytes());
            }
            _ => {
                bytes.push(mask | 127);
                bytes.extend((length as u64).to_be_bytes());
            }
        }
        bytes.extend(std::iter::repeat_n(
            0xff,
            length + if masked { 4 } else { 0 },
        ));
        bytes
    }

    proptest! {
        /// CONN-6: however the bytes are cut, the end of each frame is known, and nothing else is
        /// one.
        #[test]
        fn the_ends_of_frames_are_found(
            frames in prop::collection::vec((prop_oneof![0usize..300, 65_530usize..65_540], any::<bool>()), 1..6),
            cut in 1usize..70_000,
        ) {
            let (mut bytes, mut ends) = (Vec::new(), vec![0]);
            for (length, masked) in frames {
                bytes.extend(frame(length, masked));
                ends.push(bytes.len());
            }
            let mut followed = Frames::default();
            let mut passed = 0;
            for piece in bytes.chunks(cut) {
                followed.pass(piece);
                passed += piece.len();
                prop_assert_eq!(followed.is_between(), ends.contains(&passed));
            }
        }
    }
}
