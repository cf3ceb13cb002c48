// Joining an autograd engine that already runs, and leaving it in peace at exit.
#pragma once

namespace torch_tpu {

// Gives each device its queue and thread in the autograd engine if the engine started without them.
void join_autograd();

// Waits until the engine's device threads have let go of their last task. They may drop its Python objects after the main
// thread went on; once the interpreter ends, taking the GIL for that would kill the process.
void settle_autograd();

}  // namespace torch_tpu
