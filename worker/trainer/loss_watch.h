// Notices when a loss jumps.
//
// A step's loss is a spike when it stands out from those of the steps before
// it: by more than kDeviations times their usual distance from their median
// (1.4826 times the median of the distances, which for normal noise is the
// standard deviation), and by more than kShare of the median.  Medians are
// moved neither by a spike nor by a slow descent.  Only looks on: training is
// not affected, and equal losses give equal answers.
#ifndef WORKER_TRAINER_LOSS_WATCH_H_
#define WORKER_TRAINER_LOSS_WATCH_H_

#include <deque>

namespace lockstep {

class LossWatch {
 public:
  // How many losses are looked back on, and how many there must be.
  static constexpr int kWindow = 64;
  static constexpr int kCountMin = 16;
  static constexpr double kDeviations = 6;
  static constexpr double kShare = 0.05;

  // The next step's mean loss; what is not finite is passed over.  Whether it
  // is a spike.
  bool IsSpike(double loss);

 private:
  std::deque<double> losses_;
};

}  // namespace lockstep

#endif  // WORKER_TRAINER_LOSS_WATCH_H_
