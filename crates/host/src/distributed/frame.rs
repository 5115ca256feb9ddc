//! Messages between ranks: a kind, a length, and bytes.

use std::io::{self, Read, Write};
use std::net::TcpStream;

/// The longest message: ids and fingerprints are far shorter.
const LONGEST: usize = 1 << 16;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A rank says who it is, and what it is about to compute.
    Hello = 1,
    /// Rank 0's answer: all have come, and agree.
    Welcome,
    /// Rank 0's other answer, with a reason.
    Refused,
    /// A rank is there.
    Beat,
    /// A rank is not, with a reason.
    Gone,
    /// A rank is done.
    Bye,
    /// A rank says what it is about to compute.
    Asks,
    /// Rank 0's answer: a reason against it, or nothing.
    Answer,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Hello,
        Self::Welcome,
        Self::Refused,
        Self::Beat,
        Self::Gone,
        Self::Bye,
        Self::Asks,
        Self::Answer,
    ];
}

/// Sends a message.
///
/// # Errors
/// When the connection fails.
pub(super) fn send(mut stream: &TcpStream, kind: Kind, bytes: &[u8]) -> io::Result<()> {
    let mut frame = vec![kind as u8];
    frame.extend((bytes.len() as u32).to_le_bytes());
    frame.extend(bytes);
    stream.write_all(&frame)
}

/// Receives a message, which may take as long as the stream's timeout between any two bytes.
///
/// # Errors
/// When the connection fails, closes, or sends what is no message.
pub(super) fn receive(mut stream: &TcpStream) -> io::Result<(Kind, Vec<u8>)> {
    let mut head = [0; 5];
    stream.read_exact(&mut head)?;
    let [kind, length @ ..] = head;
    let length = u32::from_le_bytes(length) as usize;
    let unknown = || io::Error::new(io::ErrorKind::InvalidData, "it speaks another protocol");
    let kind = Kind::ALL.into_iter().find(|other| *other as u8 == kind).ok_or_else(unknown)?;
    if length > LONGEST {
        return Err(unknown());
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    Ok((kind, bytes))
}
