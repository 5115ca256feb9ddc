//! The places that a worker has met, by number.

use std::collections::HashMap;
use std::panic::Location;
use std::ptr;

use crate::error::AccessKind;
use crate::site::{Site, SiteId};

const CACHE: usize = 256;

/// The sites that one worker has met. Those of asynchronous operations have ids of their own.
pub(crate) struct Sites {
    /// Direct-mapped by address: a kernel touches few sites, and hashing one for each access is slow.
    cache: Box<[Cached; CACHE]>,
    ids: HashMap<(Site, Option<AccessKind>), SiteId>,
    /// With the operation of each that is asynchronous.
    sites: Vec<(Site, Option<AccessKind>)>,
}

/// A location, its operation if asynchronous, and its id.
type Cached = (*const Location<'static>, Option<AccessKind>, SiteId);

impl Sites {
    pub(crate) fn new() -> Self {
        Self { cache: Box::new([(ptr::null(), None, 0); CACHE]), ids: HashMap::new(), sites: Vec::new() }
    }

    /// The id of `location`; equal for equal file, line and column, whatever the address.
    #[inline]
    pub(crate) fn intern(&mut self, location: &'static Location<'static>) -> SiteId {
        self.intern_of(location, None)
    }

    /// The id of `location` as the place of an asynchronous operation.
    #[inline]
    pub(crate) fn intern_as(&mut self, location: &'static Location<'static>, kind: AccessKind) -> SiteId {
        self.intern_of(location, Some(kind))
    }

    #[inline]
    fn intern_of(&mut self, location: &'static Location<'static>, kind: Option<AccessKind>) -> SiteId {
        let slot = (ptr::from_ref(location).addr() / align_of::<Location<'_>>()) % CACHE;
        let (cached, cached_kind, id) = self.cache[slot];
        if ptr::eq(cached, location) && cached_kind == kind {
            return id;
        }
        let id = self.intern_slow((location.into(), kind));
        self.cache[slot] = (location, kind, id);
        id
    }

    #[cold]
    fn intern_slow(&mut self, site: (Site, Option<AccessKind>)) -> SiteId {
        if let Some(&id) = self.ids.get(&site) {
            return id;
        }
        // No kernel has 65,535 places that touch shared memory; were there one, the places past
        // that would share a name in messages, and nothing else would change.
        let id = SiteId::try_from(self.sites.len()).unwrap_or(SiteId::MAX);
        if id < SiteId::MAX || self.sites.len() == usize::from(SiteId::MAX) {
            self.sites.push(site);
        }
        self.ids.insert(site, id);
        id
    }

    pub(crate) fn get(&self, id: SiteId) -> Site {
        self.sites[usize::from(id)].0
    }

    /// The operation that the id came with from [`Sites::intern_as`].
    pub(crate) fn operation(&self, id: SiteId) -> Option<AccessKind> {
        self.sites[usize::from(id)].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_places_share_an_id_and_others_do_not() {
        let mut sites = Sites::new();
        let here = || Location::caller();
        let (first, second) = (here(), Location::caller());
        let id = sites.intern(first);
        assert_eq!(sites.intern(first), id);
        assert_ne!(sites.intern(second), id);
        assert_eq!(sites.get(id), Site::from(first));
        let copy = sites.intern_as(first, AccessKind::Copy);
        assert_ne!(copy, id);
        assert_eq!((sites.get(copy), sites.operation(copy)), (Site::from(first), Some(AccessKind::Copy)));
        assert_eq!((sites.intern(first), sites.operation(id)), (id, None));
    }
}
