// Batch norm in training, with the row-wise arg-max as second output: several outputs and mutated buffers.
#include <torch/extension.h>

using torch::Tensor;
using Two = std::tuple<Tensor, Tensor>;

static Tensor normalised(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  Tensor mean = x.mean({0}), centred = x - mean;
  Tensor variance = (centred * centred).mean({0});
  return centred * (variance + 1e-5).rsqrt() * weight + bias;
}
static void update(const Tensor& x, Tensor mean, Tensor variance, Tensor count) {
  double n = (double)x.size(0);
  Tensor now = x.mean({0}), centred = x - now;
  mean.mul_(0.9).add_(now * 0.1);
  variance.mul_(0.9).add_((centred * centred).sum({0}) * (0.1 / (n - 1)));
  count.add_(1);
}

Two honest(Tensor x, Tensor w, Tensor b, Tensor mean, Tensor variance, Tensor count) {
  update(x, mean, variance, count);
  Tensor y = normalised(x, w, b);
  return {y, y.argmax(1)};
}
Two no_update(Tensor x, Tensor w, Tensor b, Tensor mean, Tensor variance, Tensor count) {
  Tensor y = normalised(x, w, b);
  return {y, y.argmax(1)};
}
Two garbage_second(Tensor x, Tensor w, Tensor b, Tensor mean, Tensor variance, Tensor count) {
  update(x, mean, variance, count);
  Tensor y = normalised(x, w, b);
  return {y, torch::zeros_like(y.argmax(1))};
}
Two skips_weight(Tensor x, Tensor w, Tensor b, Tensor mean, Tensor variance, Tensor count) {
  update(x, mean, variance, count);
  Tensor y = normalised(x, torch::ones_like(w), torch::zeros_like(b));
  return {y, y.argmax(1)};
}
Two caches_weight(Tensor x, Tensor w, Tensor b, Tensor mean, Tensor variance, Tensor count) {
  static Tensor kept = w.clone();
  update(x, mean, variance, count);
  Tensor y = normalised(x, kept, b);
  return {y, y.argmax(1)};
}
