//! What a sweep asks of an operation: its inputs, its entries, and whether a run was right.

use fa_kernels::entries::{Entry, entries, gemm_entries, variants};
use fa_kernels::variant::Variant;
use flash_attention::backward::{BackwardProblem, ExpectedGradients};
use flash_attention::decode::DecodeProblem;
use flash_attention::forward::Results;
use flash_attention::gemm::GemmProblem;
use flash_attention::{Element, Operation, Plan, Prepared, Problem, Request, Result};

use crate::check::{Expected, Verdict};
use crate::decode::Cache;
use crate::gradients::Gradients;
use crate::measure::{CHECKED_ROWS, Subject, judged};
use crate::product::Product;
use crate::record::{Work, tensor_bytes};
use crate::session::Session;

/// An operation that is swept in a storage type.
pub(super) trait Swept<T: Element>: Operation {
    /// A problem with its inputs and what must come out.
    type Subject;

    /// Random inputs that `seed` names.
    ///
    /// # Errors
    /// When an input is what another kernel gives, and that fails.
    fn subject(&self, session: &Session, seed: u64) -> Result<Self::Subject>;

    /// A variant's entry for as long as the program, for plans and loaded kernels name it by reference;
    /// `None` where it is another operation's.
    fn entry(variant: &Variant) -> Option<&'static Entry<Self::Algorithm, Self::Tile>>;

    /// Runs `plan` once over poisoned outputs, and judges them.
    ///
    /// # Errors
    /// When the memory cannot be had, or the device or a kernel fails.
    fn judge<'a>(
        subject: &'a Self::Subject,
        session: &'a Session,
        plan: &Plan<Self>,
    ) -> Result<(Prepared<'a, T, Self>, Verdict)>;

    /// What a run does at the least.
    fn work(&self) -> Work;
}

/// The entry of the list that a variant is, which has its native code too, else one that is never freed.
fn entry<A: 'static, T: 'static>(
    variant: &Variant,
    mut listed: impl Iterator<Item = &'static Entry<A, T>>,
    row: impl FnOnce(&Variant, &'static str) -> Option<Entry<A, T>>,
) -> Option<&'static Entry<A, T>> {
    let name = variant.name();
    if variants().any(|listed| listed == *variant) {
        return listed.find(|entry| entry.name == name);
    }
    row(variant, name.leak()).map(|row| &*Box::leak(Box::new(row)))
}

impl<T: Element> Swept<T> for Problem {
    type Subject = Subject<T>;

    fn subject(&self, _: &Session, seed: u64) -> Result<Self::Subject> {
        Ok(Subject::new(self, seed))
    }

    fn entry(variant: &Variant) -> Option<&'static Entry> {
        entry(variant, entries(), Variant::entry)
    }

    fn judge<'a>(
        subject: &'a Subject<T>,
        session: &'a Session,
        plan: &Plan,
    ) -> Result<(Prepared<'a, T>, Verdict)> {
        subject.judge(session, plan)
    }

    fn work(&self) -> Work {
        Work { flops: self.flops(), bytes: tensor_bytes(self) }
    }
}

impl<T: Element> Swept<T> for DecodeProblem {
    type Subject = (Cache<T>, Expected<T>);

    fn subject(&self, _: &Session, seed: u64) -> Result<Self::Subject> {
        let cache = Cache::random(self, None, seed);
        let expected = Expected::of_decode(self, &cache.inputs(), CHECKED_ROWS, seed);
        Ok((cache, expected))
    }

    fn entry(variant: &Variant) -> Option<&'static Entry> {
        entry(variant, entries(), Variant::entry)
    }

    fn judge<'a>(
        (cache, expected): &'a Self::Subject,
        session: &'a Session,
        plan: &Plan<Self>,
    ) -> Result<(Prepared<'a, T, Self>, Verdict)> {
        let prepared = session.backend.prepare(plan, cache.inputs())?;
        judged(prepared, |o, lse| expected.judge(plan.problem().dense(), plan.score_roundoff(), o, lse))
    }

    fn work(&self) -> Work {
        Work { flops: self.dense().flops(), bytes: tensor_bytes(self.dense()) }
    }
}

/// A forward pass, its gradients, and what they must be near to.
pub(super) struct BackwardSubject<T: Element> {
    forward: Subject<T>,
    gradients: Gradients<T>,
    expected: ExpectedGradients<T>,
}

impl<T: Element<Output = T>> Swept<T> for BackwardProblem {
    type Subject = BackwardSubject<T>;

    fn subject(&self, session: &Session, seed: u64) -> Result<Self::Subject> {
        let forward = Subject::new(self.forward(), seed);
        let plan = session.backend.plan(self.forward(), &Request::default())?;
        let Results { o, lse } = forward.judge(session, &plan)?.0.outputs()?.clone();
        let gradients = Gradients::new(self.forward().clone(), (o, lse), seed)?;
        let expected = gradients.expected(&forward.inputs);
        Ok(BackwardSubject { forward, gradients, expected })
    }

    fn entry(variant: &Variant) -> Option<&'static Entry> {
        entry(variant, entries(), Variant::entry)
    }

    fn judge<'a>(
        BackwardSubject { forward, gradients, expected }: &'a Self::Subject,
        session: &'a Session,
        plan: &Plan<Self>,
    ) -> Result<(Prepared<'a, T, Self>, Verdict)> {
        let (prepared, _, verdict) = gradients.judged(&forward.inputs, expected, &session.backend, plan)?;
        Ok((prepared, verdict))
    }

    fn work(&self) -> Work {
        // The gradients of Q, K and V, and dO, are as long as what they are of.
        Work { flops: self.flops(), bytes: 2 * tensor_bytes(self.forward()) }
    }
}

impl<T: Element> Swept<T> for GemmProblem {
    type Subject = Product<T>;

    fn subject(&self, _: &Session, seed: u64) -> Result<Self::Subject> {
        Ok(Product::new(self, seed, Product::<T>::rows_to_check(self)))
    }

    fn entry(variant: &Variant) -> Option<&'static Entry<Self::Algorithm, Self::Tile>> {
        entry(variant, gemm_entries(), Variant::gemm_entry)
    }

    fn judge<'a>(
        subject: &'a Product<T>,
        session: &'a Session,
        plan: &Plan<Self>,
    ) -> Result<(Prepared<'a, T, Self>, Verdict)> {
        subject.judge(&session.backend, plan)
    }

    fn work(&self) -> Work {
        let elements = self.m() * self.k() + self.k() * self.n() + self.m() * self.n();
        Work { flops: self.flops(), bytes: (elements * self.dtype().bytes()) as u64 }
    }
}
