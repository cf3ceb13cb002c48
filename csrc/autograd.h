// Late import: joining an autograd engine that is already running.
#pragma once

namespace torch_tpu {

// Gives each device its queue and thread in the autograd engine if the engine started without them.
void join_autograd();

}  // namespace torch_tpu
