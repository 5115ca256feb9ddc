//! Other people's kernels beside ours: one long-lived Python process with PyTorch, asked over a pipe.
//!
//! It computes only when asked, so that on a GPU both processes have the device to themselves in their turns.

mod protocol;

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, anyhow, bail};
use flash_attention::BackendKind;

use crate::args::Choice;
use crate::record::PeerRecord;
use crate::timer::Pace;
use protocol::{Answer, Greeting, Request};
pub(crate) use protocol::{AttentionCall, Call, Form, Implementation, Pass, ServeCall};

/// The peer's side of the pipe.
const TORCH: &str = include_str!("torch.py");

/// Evictions of the L2 cache before a step for each of its calls: PyTorch enqueues the step meanwhile.
const EVICTIONS_OF_A_CALL: usize = 4;

/// What came of a call's preparation.
#[derive(Debug)]
pub(crate) enum Prepared {
    /// Its number.
    Ready(usize),
    /// Why this call cannot be made.
    Refused(String),
    /// Why no call of its kind can be made here.
    Missing(String),
}

/// A peer that answers.
pub(crate) struct Peer {
    child: Child,
    /// `None` once the peer is told to end.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    pub(crate) record: PeerRecord,
    backend: BackendKind,
    calls: usize,
}

impl Peer {
    /// Starts the peer for a backend's device, GPU `ordinal` of those that the driver sees; on the CPU it has
    /// as many threads as the library.
    ///
    /// # Errors
    /// When the Python does not run, or has no PyTorch that can use the device.
    pub(crate) fn start(choice: &Choice, backend: BackendKind, ordinal: usize) -> Result<Self> {
        let python = &choice.python;
        let device = match backend {
            BackendKind::Cuda => format!("cuda:{ordinal}"),
            BackendKind::Cpu | BackendKind::Sim => "cpu".to_owned(),
        };
        let mut child = Command::new(python)
            .args(["-c", TORCH, &device, &rayon::current_num_threads().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("--peer torch={python}: cannot be run"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("--peer torch={python}: has no pipe");
        };
        let mut output = BufReader::new(output);
        let mut line = String::new();
        output.read_line(&mut line).with_context(|| format!("--peer torch={python}"))?;
        let (name, device) = match serde_json::from_str(&line) {
            Ok(Greeting::Ready { name, device }) => (name, device),
            Ok(Greeting::Missing { missing }) => {
                let _ = child.wait();
                bail!(
                    "--peer torch={python}: this Python has no usable PyTorch ({missing}); name one that has, as in \
                     --peer torch=/path/to/python"
                );
            }
            Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                bail!("--peer torch={python}: said {:?} in place of what it is", line.trim());
            }
        };
        let record = PeerRecord { name, program: python.clone(), device };
        Ok(Self { child, input: Some(input), output, record, backend, calls: 0 })
    }

    /// PyTorch's attention with each backend that exists on the peer's device, and as it comes.
    pub(crate) const fn implementations(&self) -> &'static [Implementation] {
        use Implementation::{Cudnn, Default, Efficient, Flash2, Math};
        match self.backend {
            BackendKind::Cuda => &[Flash2, Cudnn, Efficient, Math, Default],
            BackendKind::Cpu | BackendKind::Sim => &[Flash2, Math, Default],
        }
    }

    /// Has the peer make the inputs of a call and do it once.
    ///
    /// # Errors
    /// When the peer is gone.
    pub(crate) fn prepare(&mut self, call: &Call<'_>) -> Result<Prepared> {
        self.calls += 1;
        let request = match call.request(self.calls) {
            Ok(request) => request,
            Err(reason) => return Ok(Prepared::Refused(reason)),
        };
        match self.ask(&request)? {
            Answer::Ready { .. } => Ok(Prepared::Ready(self.calls)),
            Answer::Refused { refused } => Ok(Prepared::Refused(refused)),
            Answer::Missing { missing } => Ok(Prepared::Missing(missing)),
            answer => Err(self.confused(&answer)),
        }
    }

    /// Device memory that a prepared call takes at most, its output included; or why that is not known.
    ///
    /// # Errors
    /// When the peer is gone.
    pub(crate) fn peak_bytes(&mut self, number: usize) -> Result<Result<u64, String>> {
        match self.ask(&Request::Peak { number })? {
            Answer::Bytes { bytes } => Ok(Ok(bytes)),
            Answer::Refused { refused } => Ok(Err(refused)),
            answer => Err(self.confused(&answer)),
        }
    }

    /// Lets go of the inputs of all calls.
    ///
    /// # Errors
    /// When the peer is gone.
    pub(crate) fn forget(&mut self) -> Result<()> {
        self.ask(&Request::Forget).map(drop)
    }

    /// Seconds of runs of a prepared call.
    ///
    /// # Errors
    /// When it is refused, or the peer is gone.
    pub(crate) fn time(&mut self, number: usize, runs: usize, pace: Pace) -> Result<Vec<f64>> {
        let (evictions, waits) = (pace.evictions(), pace == Pace::Rested);
        match self.ask(&Request::Time { number, runs, evictions, waits })? {
            Answer::Seconds { seconds } if seconds.len() == runs => Ok(seconds),
            Answer::Refused { refused } => Err(anyhow!(refused)),
            answer => Err(self.confused(&answer)),
        }
    }

    /// Seconds of a step of a prepared service: keys of each sequence that decodes, and query rows and keys
    /// of each that fills its cache.
    ///
    /// # Errors
    /// As [`Self::time`].
    pub(crate) fn step(&mut self, number: usize, decoding: &[usize], filling: &[[usize; 2]]) -> Result<f64> {
        match self.ask(&Request::Step { number, decoding, filling, evictions: EVICTIONS_OF_A_CALL })? {
            Answer::Seconds { seconds } if seconds.len() == 1 => Ok(seconds[0]),
            Answer::Refused { refused } => Err(anyhow!(refused)),
            answer => Err(self.confused(&answer)),
        }
    }

    /// Seconds of one run between events of the device, and seconds that the host takes to enqueue it.
    ///
    /// # Errors
    /// As [`Self::time`].
    pub(crate) fn probe(&mut self, number: usize) -> Result<(f64, f64)> {
        match self.ask(&Request::Probe { number, evictions: Pace::Rested.evictions() })? {
            Answer::Probe { device, host } => Ok((device, host)),
            Answer::Refused { refused } => Err(anyhow!(refused)),
            answer => Err(self.confused(&answer)),
        }
    }

    /// Seconds of one of `runs` runs in a replayed CUDA graph; `None` where a graph cannot hold them.
    ///
    /// # Errors
    /// When the peer is gone.
    pub(crate) fn replayed(&mut self, number: usize, runs: usize) -> Result<Option<f64>> {
        match self.ask(&Request::Replay { number, runs })? {
            Answer::Seconds { seconds } => Ok(seconds.first().copied()),
            Answer::Refused { .. } => Ok(None),
            answer => Err(self.confused(&answer)),
        }
    }

    fn ask(&mut self, request: &Request<'_>) -> Result<Answer> {
        let gone = || format!("{} has ended", self.record.name);
        let mut text = serde_json::to_string(request)?;
        text.push('\n');
        let input = self.input.as_mut().with_context(gone)?;
        // Not the error of the pipe: one of stdout ends the program quietly.
        input.write_all(text.as_bytes()).map_err(|_| anyhow!(gone()))?;
        let mut line = String::new();
        self.output.read_line(&mut line).with_context(gone)?;
        serde_json::from_str(&line).map_err(|_| match line.trim() {
            "" => anyhow!(gone()),
            said => anyhow!("{} answers {said:?}, which is no answer", self.record.name),
        })
    }

    fn confused(&self, answer: &Answer) -> anyhow::Error {
        anyhow!("{} answers {answer:?} to another question", self.record.name)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The end of its input is what tells it to end.
        self.input = None;
        let _ = self.child.wait();
    }
}
