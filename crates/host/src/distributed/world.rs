//! Which rank this process is, of how many, and where they meet: as launchers say in the environment.

use super::refuse;
use crate::Result;

/// A rank's place among others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    /// Index of the rank.
    pub rank: usize,
    /// Number of ranks.
    pub size: usize,
    /// Index among the ranks of this host, which is that of its GPU.
    pub local_rank: usize,
    /// Host and port where rank 0 listens.
    pub address: String,
}

/// The variables of a launcher: rank, number of ranks, rank on this host.
const LAUNCHERS: [(&str, [&str; 3]); 3] = [
    ("torchrun", ["RANK", "WORLD_SIZE", "LOCAL_RANK"]),
    ("Slurm", ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"]),
    ("Open MPI", ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"]),
];

/// Where ranks meet without `MASTER_PORT`: torchrun's default, and one behind it.
const DEFAULT_PORT: u16 = 29_500;

impl World {
    /// As torchrun, Slurm or Open MPI started this process: `RANK`, `WORLD_SIZE` and `LOCAL_RANK`, or theirs;
    /// none where no launcher did. Ranks meet at `MASTER_ADDR`, by default this host, on port `FA_PORT`, by
    /// default the one behind `MASTER_PORT`, which torchrun holds.
    ///
    /// # Errors
    /// When one of a launcher's variables is missing, one is no number, or a rank is none of its world.
    pub fn launched() -> Result<Option<Self>> {
        Self::of(|name| std::env::var(name).ok())
    }

    /// As [`Self::launched`], of a process that a launcher must have started.
    ///
    /// # Errors
    /// As [`Self::launched`], and when none did.
    pub fn from_env() -> Result<Self> {
        Self::launched()?.map_or_else(not_launched, Ok)
    }

    fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let number = |name: &str| -> Result<Option<usize>> {
            let Some(text) = variable(name) else { return Ok(None) };
            match text.trim().parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => refuse(format!("{name} is {text:?}; a number from 0 on is needed")),
            }
        };
        let launcher = LAUNCHERS.iter().find(|(_, [rank, ..])| variable(rank).is_some());
        let Some((launcher, [rank_name, size_name, local_name])) = launcher else { return Ok(None) };
        let missing = |name: &str| format!("{rank_name} is there and {name} is not, which {launcher} sets");
        let rank = number(rank_name)?.unwrap_or_default();
        let Some(size) = number(size_name)? else { return refuse(missing(size_name)) };
        let Some(local_rank) = number(local_name)? else { return refuse(missing(local_name)) };
        if rank >= size {
            return refuse(format!("{rank_name} is {rank}, and {size_name} is {size}"));
        }
        let port = |name: &str| -> Result<Option<u16>> {
            let Some(port) = number(name)? else { return Ok(None) };
            match u16::try_from(port) {
                Ok(port) if port > 0 => Ok(Some(port)),
                _ => refuse(format!("{name} is {port}; a port from 1 to 65535 is needed")),
            }
        };
        let port = match (port("FA_PORT")?, port("MASTER_PORT")?) {
            (Some(port), _) => port,
            (None, master) => match master.unwrap_or(DEFAULT_PORT).checked_add(1) {
                Some(port) => port,
                None => {
                    return refuse("MASTER_PORT is 65535, and no port is behind it; set FA_PORT".to_owned());
                }
            },
        };
        let host = variable("MASTER_ADDR").unwrap_or_else(|| "127.0.0.1".to_owned());
        Ok(Some(Self { rank, size, local_rank, address: format!("{host}:{port}") }))
    }
}

fn not_launched() -> Result<World> {
    let names: Vec<_> = LAUNCHERS.iter().map(|(name, [rank, ..])| format!("{rank} of {name}")).collect();
    refuse(format!("no launcher started this process: none of {} is there", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<World, String> {
        let variable = |name: &str| {
            variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
        };
        let world = World::of(variable).and_then(|world| world.map_or_else(not_launched, Ok));
        world.map_err(|error| error.to_string())
    }

    #[test]
    fn launchers_are_understood() {
        let torchrun = [
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "host"),
            ("MASTER_PORT", "1234"),
        ];
        let world = World { rank: 3, size: 4, local_rank: 1, address: "host:1235".to_owned() };
        assert_eq!(of(&torchrun), Ok(world));
        let slurm = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_LOCALID", "0"), ("FA_PORT", "77")];
        let world = World { rank: 0, size: 2, local_rank: 0, address: "127.0.0.1:77".to_owned() };
        assert_eq!(of(&slurm), Ok(world));
        let mpi = LAUNCHERS[2].1.map(|name| (name, if name.ends_with("SIZE") { "2" } else { "1" }));
        assert_eq!(of(&mpi).map(|world| (world.rank, world.address)), Ok((1, "127.0.0.1:29501".to_owned())));
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let refused = |variables: &[(&str, &str)]| {
            of(variables).unwrap_err().trim_start_matches("context parallelism: ").to_owned()
        };
        assert_eq!(
            refused(&[]),
            "no launcher started this process: none of RANK of torchrun, SLURM_PROCID of Slurm, \
             OMPI_COMM_WORLD_RANK of Open MPI is there"
        );
        assert_eq!(refused(&[("RANK", "x")]), "RANK is \"x\"; a number from 0 on is needed");
        assert_eq!(refused(&[("RANK", "1")]), "RANK is there and WORLD_SIZE is not, which torchrun sets");
        let of_two = |more: &[(&'static str, &'static str)]| {
            refused(&[&[("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")], more].concat())
        };
        assert_eq!(
            refused(&[("RANK", "2"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")]),
            "RANK is 2, and WORLD_SIZE is 2"
        );
        assert_eq!(of_two(&[("FA_PORT", "70000")]), "FA_PORT is 70000; a port from 1 to 65535 is needed");
        assert_eq!(
            of_two(&[("MASTER_PORT", "65535")]),
            "MASTER_PORT is 65535, and no port is behind it; set FA_PORT"
        );
    }
}
