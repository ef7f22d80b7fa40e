// Machines that are known by name.
#pragma once

#include <vector>

#include "cost/hardware.h"

namespace nns::cost {

const std::vector<Hardware>& presets();

}  // namespace nns::cost
