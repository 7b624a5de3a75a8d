"""The load of simulated runs on real sockets and disks, with a served broker that is killed and started again."""
