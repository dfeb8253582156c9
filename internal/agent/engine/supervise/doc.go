// Package supervise runs programs so that none of their processes outlives the agent.
//
// Each program runs below a shim: a small process of the agent's own binary (see [Main]) in a session of its own. The
// shim is the child subreaper of everything that the program starts, so daemons that detach themselves stay its
// children; it ends when the last of them has. It holds a pipe from the agent: when that closes, because the agent was
// killed, the shim stops the program. The program itself is killed by the kernel when its shim is. What survives even
// that (the shim killed, the program's children detached) carries the run's token in its environment, and is a member
// of the run's cgroup where there are cgroups: [Supervisor.Clean] finds and kills it.
//
// Not found is a process that replaced its environment and left its cgroup, when the agent and the shim were both killed.
package supervise
