// Prints the targets of a policy for recorded readings: replay policy.onnx < readings.jsonl
//
// Each line of the input is one control step, an object with the members of ksim::Readings and, where they change, the
// "commands" by name. Each line of the output has the targets.
#include <exception>
#include <iostream>

#include "ksim_policy.hpp"

namespace {

ksim::Readings readings_of(const ksim::Json& step) {
  ksim::Readings now;
  const auto set = [&](const char* name, auto& member) {
    if (step.contains(name)) step.at(name).get_to(member);
  };
  set("joint_position", now.joint_position);
  set("joint_velocity", now.joint_velocity);
  set("orientation", now.orientation);
  set("angular_velocity", now.angular_velocity);
  set("linear_velocity", now.linear_velocity);
  set("position", now.position);
  set("gyros", now.gyros);
  set("accelerometers", now.accelerometers);
  set("sensors", now.sensors);
  return now;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: replay policy.onnx < readings.jsonl\n";
    return 2;
  }
  try {
    ksim::Policy policy(argv[1]);
    for (std::string line; std::getline(std::cin, line);) {
      const ksim::Json step = ksim::Json::parse(line);
      if (step.contains("commands"))
        for (const auto& [name, values] : step.at("commands").items()) policy.command(name, values);
      std::cout << ksim::Json(policy.step(readings_of(step))) << "\n";
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
