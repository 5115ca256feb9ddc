//! Ranks that have met, and notice when one of them is gone.
//!
//! Each rank has a connection to rank 0, over which it says that it is there. A process that dies closes its
//! connection; one that is stopped, or whose host is gone, says nothing. Whoever notices tells rank 0, and
//! rank 0 tells all: so each rank has an error in the place of a result, and none waits for ever.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs as _};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::frame::{Kind, receive, send};
use super::{World, refuse};
use crate::{Error, Result};

/// How often a rank says that it is there.
const BEAT: Duration = Duration::from_millis(100);

/// How long a rank that is not there yet is waited for before it is asked again.
const RETRY: Duration = Duration::from_millis(20);

/// What ranks must agree in: names and values, in one order.
pub type Fingerprint = [(&'static str, String)];

/// Why a rank's peers have no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerCause {
    /// Its process ended, or its connection did.
    #[error("is gone: its connection closed")]
    Lost,
    /// It said nothing for as long as it was waited for.
    #[error("has said nothing for {0:.1?}")]
    Silent(Duration),
    /// It gave up.
    #[error("gave up: {0}")]
    GaveUp(String),
}

/// Ranks that have met.
pub struct Group {
    world: World,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads of a rank's connections share.
struct Shared {
    /// Of rank 0 those to all others, of another rank that to rank 0; each with its rank.
    connections: Vec<(usize, TcpStream)>,
    failure: OnceLock<(usize, PeerCause, Duration)>,
    /// Whether this rank is done, and listens no more.
    is_done: OnceLock<()>,
    since: Instant,
    /// Messages are not mixed.
    sending: Mutex<()>,
    /// Questions and answers that came, with their rank.
    inbox: Mutex<Vec<(usize, Vec<u8>)>>,
    /// Something came, or a rank is gone.
    news: Condvar,
}

impl Group {
    /// Meets the other ranks, which must agree in `fingerprint`, and gives what rank 0 brings along. A rank
    /// that does not come, or later says nothing, is waited for as long as `patience`.
    ///
    /// # Errors
    /// When the port is in use, a rank does not come in time or comes twice, or ranks disagree.
    pub fn meet(
        world: World,
        fingerprint: &Fingerprint,
        brought: &[u8],
        patience: Duration,
    ) -> Result<(Self, Vec<u8>)> {
        let until = Instant::now() + patience;
        let (connections, brought) = if world.rank == 0 {
            (gather(&world, fingerprint, brought, until)?, brought.to_vec())
        } else {
            let (stream, brought) = join(&world, fingerprint, until)?;
            (vec![(0, stream)], brought)
        };
        let shared = Arc::new(Shared {
            connections,
            failure: OnceLock::new(),
            is_done: OnceLock::new(),
            since: Instant::now(),
            sending: Mutex::new(()),
            inbox: Mutex::default(),
            news: Condvar::new(),
        });
        let listen = |index| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.listen(index, patience))
        };
        let mut threads: Vec<_> = (0..shared.connections.len()).map(listen).collect();
        let beats = Arc::clone(&shared);
        threads.push(thread::spawn(move || beats.beat()));
        Ok((Self { world, shared, threads }, brought))
    }

    /// This rank's place.
    pub const fn world(&self) -> &World {
        &self.world
    }

    /// Refuses to go on once a rank is gone.
    ///
    /// # Errors
    /// [`Error::Peer`], which names it.
    pub fn check(&self) -> Result<()> {
        self.shared.check()
    }

    /// Refuses to go on where ranks disagree in what they are about to compute. All ranks call it together.
    ///
    /// # Errors
    /// [`Error::Peer`] when a rank is gone or does not come in time, and one that says what ranks disagree
    /// in.
    pub fn agree(&self, fingerprint: &Fingerprint, patience: Duration) -> Result<()> {
        let until = Instant::now() + patience;
        let ours = hello(&self.world, fingerprint);
        if self.world.rank > 0 {
            let [(_, stream)] = self.shared.connections.as_slice() else { return Ok(()) };
            // A connection that is closed is noticed by who listens.
            let _ = self.shared.send(stream, Kind::Asks, &ours);
            let answer = self.shared.hear(0, until)?;
            return if answer.is_empty() { Ok(()) } else { refuse(String::from_utf8_lossy(&answer).into()) };
        }
        let mut reason = None;
        for (rank, _) in &self.shared.connections {
            let theirs = self.shared.hear(*rank, until)?;
            reason = reason.or(greet(&theirs, &self.world, fingerprint).1);
        }
        let answer = reason.clone().unwrap_or_default();
        for (_, stream) in &self.shared.connections {
            let _ = self.shared.send(stream, Kind::Answer, answer.as_bytes());
        }
        reason.map_or(Ok(()), refuse)
    }

    /// Tells the others that this rank gives up, and why.
    pub fn give_up(&self, reason: &str) {
        self.shared.fail(self.world.rank, PeerCause::GaveUp(reason.to_owned()));
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.shared.is_done.set(());
        for (_, stream) in &self.shared.connections {
            // A peer that is gone already hears nothing.
            let _ = self.shared.send(stream, Kind::Bye, &[]);
            let _ = stream.shutdown(Shutdown::Read);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn check(&self) -> Result<()> {
        match self.failure.get() {
            None => Ok(()),
            Some((rank, cause, after)) => {
                Err(Error::Peer { rank: *rank, cause: cause.clone(), after: *after })
            }
        }
    }

    /// The first message of a rank that was not heard so far.
    fn hear(&self, rank: usize, until: Instant) -> Result<Vec<u8>> {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(index) = inbox.iter().position(|(other, _)| *other == rank) {
                return Ok(inbox.remove(index).1);
            }
            self.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return refuse(format!("rank {rank} did not say in time what it computes"));
            }
            let waited = self.news.wait_timeout(inbox, left.min(BEAT));
            inbox = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn send(&self, stream: &TcpStream, kind: Kind, bytes: &[u8]) -> io::Result<()> {
        let _one = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        send(stream, kind, bytes)
    }

    /// Keeps the first failure, and tells it.
    fn fail(&self, rank: usize, cause: PeerCause) {
        let mut bytes = (rank as u32).to_le_bytes().to_vec();
        match &cause {
            PeerCause::Lost => bytes.push(0),
            PeerCause::Silent(time) => {
                bytes.push(1);
                bytes.extend((time.as_millis() as u64).to_le_bytes());
            }
            PeerCause::GaveUp(reason) => {
                bytes.push(2);
                bytes.extend(reason.as_bytes());
            }
        }
        if self.failure.set((rank, cause, self.since.elapsed())).is_ok() {
            for (other, stream) in &self.connections {
                if *other != rank {
                    let _ = self.send(stream, Kind::Gone, &bytes);
                }
            }
        }
    }

    /// Says that this rank is there until it is done.
    fn beat(&self) {
        while self.is_done.get().is_none() {
            for (_, stream) in &self.connections {
                // Who listens notices that a connection is closed.
                let _ = self.send(stream, Kind::Beat, &[]);
            }
            thread::sleep(BEAT);
        }
    }

    /// Hears a connection until its rank is done, or gone.
    fn listen(&self, index: usize, patience: Duration) {
        let (rank, stream) = &self.connections[index];
        let is_set = stream.set_read_timeout(Some(patience)).is_ok();
        while is_set && self.is_done.get().is_none() {
            match receive(stream) {
                Ok((Kind::Bye, _)) => return,
                Ok((Kind::Asks | Kind::Answer, bytes)) => {
                    let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
                    inbox.push((*rank, bytes));
                    self.news.notify_all();
                }
                Ok((Kind::Gone, bytes)) => {
                    let (rank, cause) = failure(&bytes).unwrap_or((*rank, PeerCause::Lost));
                    self.fail(rank, cause);
                }
                Ok(_) => {}
                Err(_) if self.is_done.get().is_some() => return,
                Err(error) => {
                    let is_silent =
                        matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
                    self.fail(*rank, if is_silent { PeerCause::Silent(patience) } else { PeerCause::Lost });
                    return;
                }
            }
        }
    }
}

/// What a message says of a rank that is gone.
fn failure(bytes: &[u8]) -> Option<(usize, PeerCause)> {
    let (rank, rest) = bytes.split_first_chunk()?;
    let (cause, rest) = rest.split_first()?;
    let cause = match cause {
        1 => PeerCause::Silent(Duration::from_millis(u64::from_le_bytes(*rest.first_chunk()?))),
        2 => PeerCause::GaveUp(String::from_utf8_lossy(rest).into_owned()),
        _ => PeerCause::Lost,
    };
    Some((u32::from_le_bytes(*rank) as usize, cause))
}

/// What a rank says when it comes.
fn hello(world: &World, fingerprint: &Fingerprint) -> Vec<u8> {
    let mut text = format!("{}\n{}\n", world.rank, world.size);
    fingerprint.iter().for_each(|(name, value)| text += &format!("{name}\t{}\n", value.replace('\n', " ")));
    text.into_bytes()
}

/// The rank that says so, and what speaks against it.
fn greet(bytes: &[u8], world: &World, fingerprint: &Fingerprint) -> (Option<usize>, Option<String>) {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines();
    let mut number = || lines.next().and_then(|line| line.parse::<usize>().ok());
    let (Some(rank), Some(size)) = (number(), number()) else {
        return (None, Some("what came first is no rank's greeting".to_owned()));
    };
    if size != world.size || rank == 0 || rank >= size {
        let reason = format!("rank {rank} of {size} came to a world of {}", world.size);
        return (Some(rank), Some(reason));
    }
    let theirs: Vec<_> = lines.map(|line| line.split_once('\t').unwrap_or((line, ""))).collect();
    let differs = fingerprint.iter().zip(theirs.iter().copied().map(Some).chain(std::iter::repeat(None)));
    let reason = differs.into_iter().find_map(|((name, ours), theirs)| {
        let (other, value) = theirs.unwrap_or((name, "not there"));
        let ours = ours.replace('\n', " ");
        (other != *name || value != ours)
            .then(|| format!("ranks disagree: {name} is {ours} on rank 0, and {value} on rank {rank}"))
    });
    let is_longer = theirs.len() > fingerprint.len();
    let longer =
        || format!("ranks disagree: rank {rank} has {} more to agree in", theirs.len() - fingerprint.len());
    (Some(rank), reason.or_else(|| is_longer.then(longer)))
}

/// Rank 0: waits for all others, and answers them.
fn gather(
    world: &World,
    fingerprint: &Fingerprint,
    brought: &[u8],
    until: Instant,
) -> Result<Vec<(usize, TcpStream)>> {
    let listener = match TcpListener::bind(&world.address) {
        Ok(listener) => listener,
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            return refuse(format!("{} is in use; set FA_PORT to a port that is free", world.address));
        }
        Err(error) => return refuse(format!("{} cannot be listened at: {error}", world.address)),
    };
    let failed = |error: io::Error| Error::Context { reason: format!("{}: {error}", world.address) };
    listener.set_nonblocking(true).map_err(failed)?;
    let mut came: Vec<(usize, TcpStream)> = Vec::new();
    let answer = |came: &[(usize, TcpStream)], kind, bytes: &[u8]| {
        // Who is gone since is noticed by who listens.
        came.iter().for_each(|(_, stream)| drop(send(stream, kind, bytes)));
    };
    while came.len() + 1 < world.size {
        if Instant::now() >= until {
            let missing: Vec<_> = (1..world.size)
                .filter(|rank| came.iter().all(|(other, _)| other != rank))
                .map(|rank| rank.to_string())
                .collect();
            let reason = format!("ranks {} did not come to {}", missing.join(", "), world.address);
            answer(&came, Kind::Refused, reason.as_bytes());
            return refuse(reason);
        }
        let (stream, _) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                thread::sleep(RETRY);
                continue;
            }
            Err(error) => return Err(failed(error)),
        };
        stream.set_nonblocking(false).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).map_err(failed)?;
        // What is no rank, a port scanner say, is left alone.
        let Ok((Kind::Hello, bytes)) = receive(&stream) else { continue };
        let (rank, mut reason) = greet(&bytes, world, fingerprint);
        let Some(rank) = rank else { continue };
        if reason.is_none() && came.iter().any(|(other, _)| *other == rank) {
            reason = Some(format!("rank {rank} came twice"));
        }
        came.push((rank, stream));
        if let Some(reason) = reason {
            answer(&came, Kind::Refused, reason.as_bytes());
            return refuse(reason);
        }
    }
    answer(&came, Kind::Welcome, brought);
    Ok(came)
}

/// Another rank: comes to rank 0 as soon as that is there, and waits until all have come.
fn join(world: &World, fingerprint: &Fingerprint, until: Instant) -> Result<(TcpStream, Vec<u8>)> {
    let missing =
        |error: io::Error| Error::Context { reason: format!("rank 0 is not at {}: {error}", world.address) };
    let stream = loop {
        let left = until.saturating_duration_since(Instant::now());
        let address = world.address.to_socket_addrs().and_then(|mut addresses| {
            addresses.next().ok_or_else(|| io::Error::other("the name has no address"))
        });
        match address.and_then(|address| TcpStream::connect_timeout(&address, left.max(RETRY))) {
            Ok(stream) => break stream,
            Err(error) if left.is_zero() => return Err(missing(error)),
            Err(_) => thread::sleep(RETRY.min(left)),
        }
    };
    stream.set_nodelay(true).map_err(missing)?;
    let left = until.saturating_duration_since(Instant::now());
    // Rank 0 waits as long for the last of us, and answers then.
    stream.set_read_timeout(Some(left + Duration::from_secs(1))).map_err(missing)?;
    send(&stream, Kind::Hello, &hello(world, fingerprint)).map_err(missing)?;
    match receive(&stream).map_err(missing)? {
        (Kind::Welcome, brought) => Ok((stream, brought)),
        (Kind::Refused, reason) => refuse(String::from_utf8_lossy(&reason).into_owned()),
        _ => refuse(format!("{} is no rank 0", world.address)),
    }
}

#[cfg(test)]
mod tests;
