//! An experiment under way: its session, what it has measured so far, and where that goes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt::Display;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use flash_attention::BackendKind;

use super::document::{Document, Figure, Row, SCHEMA, Unit};
use super::{clocks, summary, table};
use crate::args::{LabArgs, MeasureArgs};
use crate::interrupt::{self, Interrupted};
use crate::json::Destination;
use crate::output::{Progress, Screen};
use crate::peer::{Implementation, Peer};
use crate::record::{Header, PeerRecord};
use crate::session::Session;
use crate::timer::{Effort, Pacing};

/// What all experiments of one process share.
#[derive(Default)]
pub(crate) struct Shared {
    /// Started by the first experiment that wants it.
    pub(crate) peer: Option<Rc<RefCell<Peer>>>,
    /// The command line, without where its document goes.
    pub(crate) command: String,
}

/// A command line as one types it, without where its document goes.
pub(crate) fn command(words: impl Iterator<Item = String>) -> String {
    let mut said = vec!["fa-bench".to_owned()];
    let mut words = words.skip(1).peekable();
    while let Some(word) = words.next() {
        if word == "--json" {
            words.next_if(|next| !next.starts_with("--"));
        } else if !word.starts_with("--json=") {
            let plain =
                !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || "'\"$&|;<>*".contains(c));
            said.push(if plain { word } else { format!("'{}'", word.replace('\'', "'\\''")) });
        }
    }
    said.join(" ")
}

/// An experiment in a few words.
pub(crate) struct Recipe {
    pub(crate) name: &'static str,
    /// What is run and what that shows, in a sentence.
    pub(crate) what: &'static str,
    /// What others report, of other devices.
    pub(crate) reported_elsewhere: Option<&'static str>,
    /// What `x` of the rows is.
    pub(crate) axis: Option<&'static str>,
    /// Timed runs of a kernel.
    pub(crate) iterations: usize,
    /// Whether its sizes are smaller where there is no GPU.
    pub(crate) scaled: bool,
}

/// The usual number of timed runs.
pub(crate) const ITERATIONS: usize = 50;

/// An experiment that is under way.
pub(crate) struct Lab {
    pub(crate) session: Rc<Session>,
    pub(super) screen: Screen,
    /// The first line, until it is printed.
    introduction: Cell<Option<String>>,
    pub(crate) effort: Effort,
    pub(crate) seed: u64,
    pub(super) measure: MeasureArgs,
    pub(super) peer: Option<Rc<RefCell<Peer>>>,
    /// Of the peer's attention, what takes part.
    pub(super) implementations: Vec<Implementation>,
    /// What the peer lacks, of which one row says so.
    pub(super) missing: RefCell<BTreeSet<&'static str>>,
    pub(super) document: Document,
    destination: Option<Destination>,
}

/// Runs an experiment: its header, then what `measure` does, then the table and the document of all rows that
/// there are, also where `measure` ends early. False if a result is wrong.
pub(crate) fn run(
    recipe: &Recipe,
    args: &LabArgs,
    shared: &mut Shared,
    measure: impl FnOnce(&mut Lab) -> Result<()>,
) -> Result<bool> {
    let screen = args.report.open()?;
    let session = Session::open(&args.backend)?;
    interrupt::listen()?;
    let kind = session.kind();
    let note = match kind {
        _ if !recipe.scaled => "",
        BackendKind::Cuda => "",
        BackendKind::Cpu => " (on the CPU: smaller sizes than on a GPU)",
        BackendKind::Sim => " (in the simulator: the smallest sizes)",
    };
    if let (Some(choice), None) = (&args.peer, &shared.peer) {
        let peer = Peer::start(choice, kind, args.backend.device.unwrap_or(0))?;
        shared.peer = Some(Rc::new(RefCell::new(peer)));
    }
    let peer = shared.peer.clone().filter(|_| args.peer.is_some());
    let record = peer.as_ref().map(|peer| peer.borrow().record.clone());
    let document = Document {
        header: Header { schema: SCHEMA, ..Header::new(recipe.name, &session, args.report.seed) },
        command: shared.command.clone(),
        what: recipe.what.into(),
        reported_elsewhere: recipe.reported_elsewhere.map(Into::into),
        axis: recipe.axis.map(Into::into),
        peer: record,
        rows: Vec::new(),
        figures: Vec::new(),
        notes: Vec::new(),
        stopped: Some("it is still running, or was killed".to_owned()),
        passed: true,
    };
    let mut lab = Lab {
        effort: session.effort(&args.measure, recipe.iterations),
        session: Rc::new(session),
        screen,
        introduction: Cell::new(Some(format!("{}: {}{note}", recipe.name, recipe.what))),
        seed: args.report.seed,
        measure: args.measure.clone(),
        implementations: peer.as_ref().map_or(Vec::new(), |peer| peer.borrow().implementations().to_vec()),
        missing: RefCell::default(),
        peer,
        document,
        destination: args.report.json.clone(),
    };
    let ordinal = args.backend.device.unwrap_or(0);
    let ended = measure(&mut lab);
    if let Some(state) = clocks::state(kind, ordinal) {
        lab.note(format!("the GPU right after the runs: {state}"));
    }
    lab.finish(ended)
}

impl Lab {
    pub(crate) fn kind(&self) -> BackendKind {
        self.session.kind()
    }

    /// Prints a line; before the first one, what runs where. Arguments that are at fault are found before
    /// that.
    pub(crate) fn line(&self, text: impl Display) -> Result<()> {
        self.introduce()?;
        Ok(self.screen.line(text)?)
    }

    pub(super) fn introduce(&self) -> Result<()> {
        let Some(first) = self.introduction.take() else { return Ok(()) };
        self.screen.line(first)?;
        self.session.header(&self.screen)?;
        match &self.document.peer {
            Some(PeerRecord { name, program, device }) => {
                Ok(self.screen.line(format!("peer {name} ({program}): {device}"))?)
            }
            None => Ok(()),
        }
    }

    /// The value for the backend at hand.
    pub(crate) fn pick<T>(&self, gpu: T, cpu: T, sim: T) -> T {
        match self.kind() {
            BackendKind::Cuda => gpu,
            BackendKind::Cpu => cpu,
            BackendKind::Sim => sim,
        }
    }

    /// What was asked for, else the values for the backend at hand.
    pub(crate) fn list(&self, asked: &[usize], gpu: &[usize], cpu: &[usize], sim: &[usize]) -> Vec<usize> {
        if asked.is_empty() { self.pick(gpu, cpu, sim).to_vec() } else { asked.to_vec() }
    }

    pub(crate) fn rows(&self) -> &[Row] {
        &self.document.rows
    }

    pub(crate) fn row_mut(&mut self, index: usize) -> &mut Row {
        &mut self.document.rows[index]
    }

    /// Adds a row, and keeps it from here on.
    pub(crate) fn push(&mut self, row: Row) -> Result<usize> {
        self.document.rows.push(row);
        self.save()?;
        Ok(self.document.rows.len() - 1)
    }

    /// Adds a figure of the whole experiment.
    pub(crate) fn figure(&mut self, name: impl Into<String>, unit: Unit, value: f64) {
        self.document.figures.push(Figure { name: name.into().into(), unit, value });
    }

    /// Adds the library's speed at each head_dim, and over that of each series of the peer, to the figures.
    pub(crate) fn add_headline(&mut self) {
        self.document.figures.extend(summary::figures(&self.document.rows));
    }

    /// Adds a sentence that a reader must know.
    pub(crate) fn note(&mut self, sentence: impl Into<String>) {
        self.document.notes.push(sentence.into());
    }

    /// Writes what there is, where that goes to a file: whatever ends the program, the file is whole.
    pub(super) fn save(&self) -> Result<()> {
        match &self.destination {
            Some(file @ Destination::File(_)) => file.write(&self.document),
            _ => Ok(()),
        }
    }

    /// Brings the card to rest at its power limit before the turns of long runs: 0.3 s take it there.
    pub(crate) fn compare_at_power_limit(&mut self) {
        if let Pacing::Device { warm } = &mut self.effort.pacing {
            *warm = Duration::from_millis(300);
        }
    }

    /// A bar of so many steps of `what`, behind what was printed first.
    pub(crate) fn progress(&self, steps: usize, what: &str) -> Progress {
        self.screen.progress(steps, what)
    }

    /// What runs other people's kernels, if something does.
    pub(crate) fn peer(&self) -> Option<Rc<RefCell<Peer>>> {
        self.peer.clone()
    }

    /// Goes on without the peer, where it would take longer than all else.
    pub(crate) fn dismiss_peer(&mut self) {
        if self.peer.take().is_some() {
            self.note("the peer takes no part in the last cases");
        }
    }

    /// Lets the peer's memory go, of which the library's kernels may need all.
    pub(crate) fn forget_peer_inputs(&self) -> Result<()> {
        self.peer.as_ref().map_or(Ok(()), |peer| peer.borrow_mut().forget())
    }

    fn finish(mut self, ended: Result<()>) -> Result<bool> {
        if self.document.rows.is_empty() && ended.is_err() {
            return ended.map(|()| false);
        }
        self.introduce()?;
        self.document.stopped = ended.as_ref().err().map(|error| format!("{error:#}"));
        self.document.passed = self.document.rows_passed();
        // First of all: whoever reads stdout may have gone.
        if let Some(destination) = &self.destination {
            destination.write(&self.document)?;
        }
        table::print(&self.screen, &self.document)?;
        if let Some(Destination::File(path)) = &self.destination {
            self.screen.line(format!("JSON written to {}", path.display()))?;
        }
        match ended {
            Ok(()) => Ok(self.document.passed),
            Err(error) if error.is::<Interrupted>() => {
                let kept = self.document.rows.len();
                let rows = if kept == 1 { "row is" } else { "rows are" };
                Err(error.context(format!("{}: {kept} {rows} kept", self.document.header.experiment)))
            }
            Err(error) => Err(error),
        }
    }
}
