//! PyTorch's kernels as players of a trace, over padded keys.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::Result;

use super::scheduler::Step;
use super::service::Player;
use crate::lab::Lab;
use crate::peer::{Call, Implementation, Peer, Prepared, ServeCall};

/// What takes part: of PyTorch's, all that may take a mask of lengths.
pub(super) const RIVALS: [Implementation; 4] =
    [Implementation::Cudnn, Implementation::Flash2, Implementation::Efficient, Implementation::Default];

/// A service that the peer has readied.
pub(super) struct PeerKernels {
    peer: Rc<RefCell<Peer>>,
    number: usize,
}

impl Player for PeerKernels {
    fn play(&mut self, step: &Step) -> Result<f64> {
        let (decoding, filling) = step.chunks.split_at(step.decoding());
        let decoding: Vec<_> = decoding.iter().map(|chunk| chunk.keys()).collect();
        let filling: Vec<_> = filling.iter().map(|chunk| [chunk.tokens, chunk.keys()]).collect();
        self.peer.borrow_mut().step(self.number, &decoding, &filling)
    }
}

/// The peer's implementations by their series: ready, or why not.
///
/// # Errors
/// When the peer is gone.
pub(super) fn prepare(lab: &Lab, like: ServeCall) -> Result<Vec<(String, Result<PeerKernels, String>)>> {
    let Some(peer) = lab.peer() else { return Ok(Vec::new()) };
    let ready = |&implementation: &Implementation| {
        let call = Call::Serve(ServeCall { implementation, ..like });
        let prepared = match peer.borrow_mut().prepare(&call)? {
            Prepared::Ready(number) => Ok(PeerKernels { peer: Rc::clone(&peer), number }),
            Prepared::Refused(reason) | Prepared::Missing(reason) => Err(reason),
        };
        Ok((call.series(), prepared))
    };
    lab.implementations().iter().map(ready).collect()
}
