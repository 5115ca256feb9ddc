use super::*;

/// Long enough for threads of this process to meet, on a busy machine too.
const LONG: Duration = Duration::from_secs(20);

/// A port that is free now.
fn address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

fn world(rank: usize, size: usize, address: &str) -> World {
    World { rank, size, local_rank: rank, address: address.to_owned() }
}

/// Meets as each rank of a world in a thread of its own.
fn all<R: Send>(size: usize, rank: impl Fn(World) -> R + Sync) -> Vec<R> {
    let address = address();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..size)
            .map(|index| {
                scope.spawn({
                    let (rank, address) = (&rank, &address);
                    move || rank(world(index, size, address))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn fails_within(group: &Group, time: Duration) -> String {
    let until = Instant::now() + time;
    while Instant::now() < until {
        if let Err(error) = group.check() {
            return error.to_string();
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("nobody noticed in {time:?}");
}

#[test]
fn ranks_meet_and_get_what_rank_0_brings() {
    let brought = all(4, |world| {
        let own = if world.rank == 0 { &b"an id"[..] } else { &[] };
        let (group, brought) = Group::meet(world, &[("seed", "1".to_owned())], own, LONG).unwrap();
        thread::sleep(3 * BEAT);
        group.check().unwrap();
        brought
    });
    assert!(brought.iter().all(|brought| brought == b"an id"));
}

#[test]
fn who_is_done_first_is_no_failure() {
    all(3, |world| {
        let rank = world.rank as u32;
        let (group, _) = Group::meet(world, &[], &[], LONG).unwrap();
        thread::sleep(rank * 2 * BEAT);
        group.check().unwrap();
    });
}

#[test]
fn a_rank_that_dies_is_named_to_all() {
    for dies in 0..3 {
        let errors = all(3, |world| {
            let rank = world.rank;
            let (group, _) = Group::meet(world, &[], &[], LONG).unwrap();
            if rank == dies {
                // As a process that ends: connections close, and nothing is said.
                for (_, stream) in &group.shared.connections {
                    stream.shutdown(Shutdown::Both).unwrap();
                }
                return String::new();
            }
            fails_within(&group, Duration::from_secs(2))
        });
        for (rank, error) in errors.iter().enumerate() {
            // Without rank 0 each rank loses its connection by itself.
            assert!(rank == dies || error.starts_with(&format!("rank {dies} is gone")), "{rank}: {error}");
        }
    }
}

#[test]
fn a_rank_that_says_nothing_is_named() {
    let patience = Duration::from_secs(1);
    let errors = all(2, |world| {
        if world.rank == 1 {
            // It comes, and is stopped.
            let (stream, _) = join(&world, &[], Instant::now() + LONG).unwrap();
            thread::sleep(3 * patience);
            drop(stream);
            return String::new();
        }
        let (group, _) = Group::meet(world, &[], &[], patience).unwrap();
        fails_within(&group, 5 * patience)
    });
    assert!(errors[0].starts_with("rank 1 has said nothing for 1.0s"), "{}", errors[0]);
}

#[test]
fn a_rank_that_gives_up_says_why() {
    let errors = all(3, |world| {
        let rank = world.rank;
        let (group, _) = Group::meet(world, &[], &[], LONG).unwrap();
        if rank == 2 {
            group.give_up("out of memory");
        }
        fails_within(&group, LONG)
    });
    assert!(errors.iter().all(|error| error.starts_with("rank 2 gave up: out of memory")), "{errors:?}");
}

#[test]
fn ranks_that_disagree_are_refused_with_what_they_disagree_in() {
    let met = |field: fn(usize) -> &'static str, size: fn(usize) -> usize| {
        all(3, |world| {
            let fingerprint = [("head_dim", "64".to_owned()), ("seqlen", field(world.rank).to_owned())];
            let world = World { size: size(world.rank), ..world };
            Group::meet(world, &fingerprint, &[], Duration::from_secs(3)).map(drop).unwrap_err().to_string()
        })
    };
    let errors = met(|rank| if rank == 2 { "100" } else { "99" }, |_| 3);
    let expected = "context parallelism: ranks disagree: seqlen is 99 on rank 0, and 100 on rank 2";
    assert_eq!(errors[0], expected);
    assert_eq!(errors[2], expected);
    let errors = met(|_| "99", |rank| if rank == 1 { 4 } else { 3 });
    assert_eq!(errors[0], "context parallelism: rank 1 of 4 came to a world of 3");
}

#[test]
fn who_does_not_come_is_named() {
    let address = address();
    let until = Duration::from_millis(200);
    let error = Group::meet(world(0, 3, &address), &[], &[], until).map(drop).unwrap_err().to_string();
    assert_eq!(error, format!("context parallelism: ranks 1, 2 did not come to {address}"));
    let error = Group::meet(world(1, 3, &address), &[], &[], until).map(drop).unwrap_err().to_string();
    assert!(error.starts_with(&format!("context parallelism: rank 0 is not at {address}: ")), "{error}");
}

#[test]
fn a_rank_that_comes_twice_and_a_port_in_use_are_refused() {
    let address = address();
    let listener = TcpListener::bind(&address).unwrap();
    let error = Group::meet(world(0, 2, &address), &[], &[], LONG).map(drop).unwrap_err().to_string();
    assert_eq!(
        error,
        format!("context parallelism: {address} is in use; set FA_PORT to a port that is free")
    );
    drop(listener);
    let errors = all(3, |world| {
        let world = World { rank: world.rank.min(1), ..world };
        Group::meet(world, &[], &[], LONG).map(drop).unwrap_err().to_string()
    });
    assert_eq!(errors[0], "context parallelism: rank 1 came twice");
}

#[test]
fn ranks_agree_before_they_compute_as_often_as_they_like() {
    all(3, |world| {
        let (group, _) = Group::meet(world, &[], &[], LONG).unwrap();
        for seqlen in [10, 20, 30] {
            group.agree(&[("seqlen_q", seqlen.to_string()), ("dtype", "f16".to_owned())], LONG).unwrap();
        }
    });
}

#[test]
fn who_computes_something_else_is_named_with_what() {
    let refused = all(3, |world| {
        let seqlen = if world.rank == 2 { "70" } else { "80" };
        let (group, _) = Group::meet(world, &[], &[], LONG).unwrap();
        group.agree(&[("seqlen_q", seqlen.to_owned())], LONG).unwrap_err().to_string()
    });
    let expected = "context parallelism: ranks disagree: seqlen_q is 80 on rank 0, and 70 on rank 2";
    assert!(refused.iter().all(|refused| refused == expected), "{refused:?}");
}

#[test]
fn who_does_not_say_what_it_computes_is_named() {
    let found = all(2, |world| {
        let rank = world.rank;
        let (group, _) = Group::meet(world, &[], &[], LONG).unwrap();
        if rank == 1 {
            thread::sleep(4 * BEAT);
            return None;
        }
        Some(group.agree(&[], BEAT).unwrap_err().to_string())
    });
    assert_eq!(found[0].as_deref(), Some("context parallelism: rank 1 did not say in time what it computes"));
}
